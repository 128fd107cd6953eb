"""The BOS in front of texts: one and never two, wherever a text is tokenised; and what `add_special_tokens` does.

A special token that generation_config.json lists ends a completion, as the EOS does.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from registry.base_model import load_base
from registry.errors import InvalidPrompt
from registry.spec import BaseEntry
from tests.service.answers import answered, refusal
from tests.service.passages import passages
from tests.service.servers import World

SETTINGS = {"engine_share_prompts": "off"}  # answers to one prompt are compared to the last bit and token
BOS = "<|endoftext|>"
TEXT = "The quick brown fox jumps over the lazy dog."
LONG = "Heat the oil, add the onions and stir until they are golden. " * 8
"""Several windows of the context."""


PROMPT = [0, 40, 41, 42, 43, 44]
TOKENS = 8


@pytest.fixture(scope="module")
def said(tiny_base_dir: Path) -> list[int]:
    """What the tiny base says after the prompt, greedily."""
    base = load_base(BaseEntry(id="tiny", source=str(tiny_base_dir)))
    ids = torch.tensor([PROMPT])
    mask = torch.ones_like(ids)
    out = base.model.generate(ids, attention_mask=mask, max_new_tokens=TOKENS, do_sample=False, pad_token_id=0)
    return [int(token) for token in out[0, len(PROMPT) :]]


@pytest.fixture(scope="module")
def served(tiny_base_dir: Path, said: list[int], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The tiny base, and a copy in whose tokenizer the last token it says is special and listed."""
    folder = Path(shutil.copytree(tiny_base_dir, tmp_path_factory.mktemp("ends") / "model"))
    file = folder / "tokenizer.json"
    saved = json.loads(file.read_text())
    text = next(text for text, token in saved["model"]["vocab"].items() if token == said[-1])
    saved["added_tokens"].append({**saved["added_tokens"][0], "id": said[-1], "content": text})
    file.write_text(json.dumps(saved))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [0, said[-1]]}))
    return {"tiny": tiny_base_dir, "listed": folder}


def post(world: World, path: str, **body: Any) -> Any:
    return answered(world.client.post(path, json={"model": "tiny", **body}))


def scored(world: World, prompt: Any, **body: Any) -> Any:
    """The log-probabilities of a prompt."""
    found = post(world, "/v1/completions", prompt=prompt, echo=True, logprobs=1, max_tokens=0, **body)
    return found["choices"][0]["logprobs"]


def test_the_first_token_of_a_text_has_the_probability_that_follows_the_bos(world: World) -> None:
    ids = post(world, "/tokenize", prompt=TEXT)["tokens"]
    assert ids[0] == 0
    given = scored(world, ids)
    assert given["token_logprobs"][0] is None  # nothing precedes the BOS itself
    text = scored(world, TEXT)
    assert text["token_logprobs"] == given["token_logprobs"][1:]
    assert text["top_logprobs"] == given["top_logprobs"][1:]
    assert text["text_offset"][0] == 0
    assert text["token_logprobs"][0] < 0
    total = post(world, "/v1/perplexity", texts=[TEXT])["texts"][0]["nll"]
    assert -sum(text["token_logprobs"]) == pytest.approx(total, rel=1e-5)


def test_a_text_of_nothing_but_the_bos_has_no_token_to_score(world: World) -> None:
    answer = world.client.post("/v1/perplexity", json={"model": "tiny", "texts": [BOS]})
    assert "nothing to score" in refusal(answer, 400)
    both = post(world, "/v1/perplexity", texts=[TEXT, BOS])
    assert both["perplexity"] == post(world, "/v1/perplexity", texts=[TEXT])["perplexity"]


def test_a_vector_does_not_change_with_the_bos(world: World) -> None:
    data = post(world, "/v1/embeddings", input=[TEXT, BOS + TEXT])["data"]
    assert data[0]["embedding"] == data[1]["embedding"]
    (sample,) = world.runtime.engine.embed("tiny", [LONG])
    (own,) = world.runtime.engine.embed("tiny", [BOS + LONG])
    assert own.vector.tolist() == sample.vector.tolist()
    assert (own.nll, own.tokens) == (sample.nll, sample.tokens)


def test_a_text_of_nothing_but_the_bos_has_no_vector(world: World) -> None:
    answer = world.client.post("/v1/embeddings", json={"model": "tiny", "input": [TEXT, BOS]})
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, "input.1")
    assert error["message"] == "Text 1 is empty but for the BOS: there is nothing to embed."
    with pytest.raises(InvalidPrompt, match="Text 1 is empty but for the BOS"):
        world.runtime.engine.embed("tiny", [TEXT, BOS])


def test_a_passage_of_nothing_but_the_bos_counts_as_an_empty_one(world: World) -> None:
    texts = [*passages("court", 25), BOS, f" {BOS}\n"]
    pushed = world.push("acme/court", sample={"texts": texts})
    told = pushed["sample"]
    assert (told["received"], told["empty"], told["kept"]) == (27, 2, 25)
    picked = world.client.post(
        "/v1/soups", json={"sample": {"texts": [BOS] * 30}, "pool": {"base_model": "tiny"}, "wait": 5}
    )
    assert picked.json()["error"]["message"].startswith("The sample has 0 different non-empty passages")


def test_tokenize_puts_one_in_front(world: World) -> None:
    assert post(world, "/tokenize", prompt=BOS + TEXT) == post(world, "/tokenize", prompt=TEXT)
    assert post(world, "/tokenize", prompt=BOS, add_special_tokens=False)["tokens"] == [0]


def test_a_listed_special_token_ends_a_completion(world: World, said: list[int]) -> None:
    def asked(model: str) -> Any:
        body = {"model": model, "prompt": PROMPT, "temperature": 0, "max_tokens": TOKENS + 2, "stop": None}
        answer = world.client.post("/v1/completions", json=body).json()
        return answer["usage"]["completion_tokens"], answer["choices"][0]["finish_reason"]

    assert 0 not in said
    assert asked("listed") == (said.index(said[-1]) + 1, "stop")
    assert asked("tiny") == (TOKENS + 2, "length")
