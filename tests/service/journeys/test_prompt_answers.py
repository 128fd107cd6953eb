"""Samples of prompts with answers, over real HTTP: what is stored, and that every loss is the answers' alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from adaptersoup import Client
from adaptersoup.cli.verbs.push.sources import Samples
from registry.samples.sample import clean_sample
from registry.spec import PromptAnswer
from tests.adaptersoup.cli.outcome import done
from tests.service.answers import answered, refusal
from tests.service.cluster import ended
from tests.service.passages import WORDS, passages
from tests.service.servers import Live, Soup

ITEMS = [  # within the context of the tiny base, so that nothing is cut
    {"prompt": f"{number} {text[:14]}", "answer": f" IT IS {text[14:30]}"}
    for number, text in enumerate(passages("court", 25))
]
PASSAGES = [PromptAnswer(**item) for item in ITEMS]


@pytest.fixture(scope="module")
def stocked(live: Live) -> Live:
    """Three domains, of which the court's sample has prompts."""
    for seed, domain in enumerate(WORDS):
        texts: list[Any] = ITEMS if domain == "court" else passages(domain, 25)
        pushed = live.world.push(f"acme/{domain}", seed=seed, domain=domain, sample={"texts": texts})
        assert ended(live.world.client, pushed["job"])["state"] == "succeeded"
    return live


def perplexity(stocked: Live, model: str, texts: list[Any]) -> dict[str, Any]:
    return dict(answered(stocked.world.client.post("/v1/perplexity", json={"model": model, "texts": texts})))


def test_a_sample_is_stored_and_given_back_as_it_was_sent(stocked: Live) -> None:
    row = stocked.world.client.get("/v1/adapters/acme/court").json()
    assert row["sample"]["digest"] == clean_sample(PASSAGES).report.digest
    stored = stocked.world.registry.blobs.read(row["sample"]["digest"])
    assert [json.loads(line) for line in stored.splitlines()] == ITEMS


def test_perplexity_is_of_the_answers(stocked: Live) -> None:
    [with_prompt, alone] = perplexity(stocked, "acme/court", [ITEMS[0], ITEMS[0]["answer"]])["texts"]
    assert (with_prompt["tokens"], with_prompt["bytes"]) == (alone["tokens"], alone["bytes"])
    assert with_prompt["nll"] != pytest.approx(alone["nll"], rel=1e-3), "the prompt is read"
    with Client(stocked.url, stocked.world.admin) as client:
        assert client.evaluate("acme/court", [ITEMS[0]]).texts[0].nll == pytest.approx(with_prompt["nll"], rel=1e-6)


@pytest.mark.parametrize("effort", ["instant", "quick", "tune"])
def test_a_cook_is_verified_on_answers(stocked: Live, effort: str) -> None:
    body = {"sample": {"texts": ITEMS}, "effort": effort, "name": f"acme/by-{effort}", "verify": True, "wait": 120}
    cooked = stocked.world.client.post("/v1/soups", json=body).json()
    verification = cooked["verification"]
    held_out = ITEMS if effort == "instant" else ITEMS[3::4]
    base = perplexity(stocked, stocked.world.base_id, held_out)
    assert (verification["passages"], verification["tokens"]) == (len(held_out), base["tokens"])
    assert verification["base_nll"] == pytest.approx(base["mean_nll"], rel=1e-4)
    if not cooked["abstained"]:
        soup = perplexity(stocked, cooked["model"], held_out)
        assert verification["soup_nll"] == pytest.approx(soup["mean_nll"], rel=0.05 if effort == "tune" else 1e-3)


def test_files_of_prompts_are_read_by_the_command_line(stocked: Live, soup: Soup, tmp_path: Path) -> None:
    file = tmp_path / "questions.jsonl"
    file.write_text("".join(json.dumps(item) + "\n" for item in ITEMS[:3]))
    out, _ = done(soup("ppl", "acme/court", "--texts", file, "--json"))
    assert json.loads(out)["tokens"] == perplexity(stocked, "acme/court", ITEMS[:3])["tokens"]
    file.write_text('{"prompt": "Who?"}\n')
    assert (
        'not an object with a string "text", or with strings "prompt" and "answer"'
        in soup("ppl", "acme/court", "--texts", file)[2]
    )


@pytest.mark.parametrize(
    ("item", "sentence"),
    [
        ({"prompt": "Who?"}, "a text, or an object with the texts 'prompt' and 'answer'"),
        ({"prompt": "Who?", "answer": 3}, "a text, or an object with the texts 'prompt' and 'answer'"),
        (7, "a text, or an object with the texts 'prompt' and 'answer'"),
        ({"prompt": "Who?", "answer": ""}, "has no answer"),
    ],
)
def test_what_is_no_passage_is_refused_in_a_sentence(stocked: Live, item: Any, sentence: str) -> None:
    message = refusal(stocked.world.client.post("/v1/perplexity", json={"model": "tiny", "texts": ["a", item]}), 400)
    assert sentence in message
    assert "\n" not in message


def test_blank_answers_are_empty_passages(stocked: Live) -> None:
    items = [*ITEMS, {"prompt": "Who?", "answer": " "}]
    answer = stocked.world.client.post("/v1/select", json={"sample": {"texts": items}, "wait": 120})
    assert answer.json()["sample"]["empty"] == 1


def test_a_file_of_many_samples_may_hold_prompts(tmp_path: Path) -> None:
    file = tmp_path / "many.jsonl"
    lines = [{"domain": "law", **ITEMS[0]}, {"domain": "law", "text": "The court."}, {"domain": "tax", **ITEMS[1]}]
    file.write_text("\n".join(map(json.dumps, lines)))
    assert Samples(file).of("folder", "law") == [PASSAGES[0], "The court."]
