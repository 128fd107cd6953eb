"""Perplexity over HTTP equals what the base model says when it is asked by hand."""

from __future__ import annotations

import math
from contextlib import ExitStack
from typing import Any

import pytest
import torch

from registry.adapters import from_tensors
from registry.adapters.attach import attached
from registry.adapters.weights import load_tensors
from registry.base_model import load_base
from tests.service.answers import refusal
from tests.service.servers import CONFIG, World, adapter_weights

TEXTS = [
    "The quick brown fox jumps over the lazy dog.",
    "Heat the oil, add the onions and stir until they are golden. " * 8,  # several windows
    "é \N{GRINNING FACE}",
]


def by_hand(world: World, texts: list[str], *, seed: int | None = None) -> list[tuple[float, int]]:
    """(NLL, tokens) of each text, window by window, with plain log-softmax."""
    base = load_base(world.runtime.bases["tiny"].entry)
    likelihoods = []
    with ExitStack() as stack:
        if seed is not None:
            tensors = load_tensors(adapter_weights(world.runtime, seed=seed))
            stack.enter_context(attached(base.model, from_tensors(CONFIG, base.shape, tensors)))
        for text in texts:
            ids = base.tokenizer(text, add_special_tokens=False)["input_ids"]
            nll, tokens = 0.0, 0
            for start in range(0, len(ids), base.shape.context - 1):
                window = torch.tensor([[base.bos_id, *ids[start : start + base.shape.context - 1]]])
                with torch.no_grad():
                    logits = base.model(window).logits
                scores = torch.log_softmax(logits.double(), -1)[0, :-1]
                nll -= float(scores.gather(1, window[0, 1:, None]).sum())
                tokens += window.shape[1] - 1
            likelihoods.append((nll, tokens))
    return likelihoods


def ask(world: World, **body: Any) -> Any:
    return world.client.post("/v1/perplexity", json={"model": "tiny", "texts": TEXTS, **body})


@pytest.mark.parametrize(("model", "seed"), [("base/tiny", None), ("team/ppl", 21)])
def test_it_is_what_the_model_says(world: World, model: str, seed: int | None) -> None:
    world.push("team/ppl", seed=21)
    answer = ask(world, model=model).json()
    expected = by_hand(world, TEXTS, seed=seed)
    for text, (nll, tokens), raw in zip(answer["texts"], expected, TEXTS, strict=True):
        assert (text["nll"], text["tokens"], text["bytes"]) == (pytest.approx(nll, rel=1e-5), tokens, len(raw.encode()))
    assert answer["texts"][1]["windows"] > 1
    total, count = sum(nll for nll, _ in expected), sum(tokens for _, tokens in expected)
    figures = {
        "perplexity": math.exp(total / count),
        "mean_nll": total / count,
        "bits_per_byte": total / math.log(2) / len("".join(TEXTS).encode()),
    }
    assert {name: answer[name] for name in figures} == pytest.approx(figures, rel=1e-5)
    assert answer["tokens"] == count
    assert answer["standard_error"] > 0
    assert (answer["model"], answer["baseline"]) == (model, None)


def test_a_baseline_is_paired(world: World) -> None:
    pushed = world.push("team/paired", seed=22)
    response = ask(world, model="team/paired", baseline="base/tiny")
    answer = response.json()
    assert response.headers["x-soup-digest"] == answer["digest"] == pushed["digest"]
    base = ask(world).json()
    expected = {"perplexity": base["perplexity"], "model": "base/tiny", "digest": None}
    assert {name: answer["baseline"][name] for name in expected} == expected
    assert answer["baseline"]["difference"] == pytest.approx(answer["mean_nll"] - base["mean_nll"], rel=1e-6)
    assert answer["baseline"]["standard_error"] > 0
    itself = ask(world, model="team/paired", baseline="team/paired").json()["baseline"]
    assert itself["difference"] == itself["standard_error"] == 0
    assert itself["digest"] == pushed["digest"]


def test_the_seed_fixes_the_standard_error(world: World) -> None:
    assert ask(world, seed=1).json() == ask(world, seed=1).json()
    assert ask(world, seed=1).json()["standard_error"] != ask(world, seed=2).json()["standard_error"]


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({"texts": []}, 400, "texts"),
        ({"texts": ["a", ""]}, 400, "Text 1 of 'texts' is empty."),
        ({"texts": ["a"] * 2001}, 413, "2001"),
        ({"texts": ["a" * 1_000_001]}, 413, "characters"),
        ({"model": "nothing"}, 404, "base model"),
        ({"baseline": "team/nothing"}, 404, ""),
        ({"seed": -1}, 400, "seed"),
        ({"stride": 5}, 400, "'stride' is not known"),
    ],
)
def test_what_is_wrong_is_refused(world: World, body: dict[str, Any], status: int, words: str) -> None:
    assert words in refusal(ask(world, **body), status)
