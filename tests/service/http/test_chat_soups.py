"""A template of the allowlist, and a soup of adapters that answers a conversation by it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from service.engine import GenerateRequest, SamplingParams
from tests.service.answers import answered
from tests.service.http.stock import cook_soup
from tests.service.servers import World, open_world

TEMPLATE = (
    "{% for m in messages %}<|endoftext|>{{ m.role }}: {{ m.content }}<|turn|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|endoftext|>assistant:{% endif %}"
)
TURN = 299
"""`<|turn|>`, in place of the last token of the vocabulary."""
HELLO = [{"role": "user", "content": "The fox?"}]
PROMPT = "<|endoftext|>user: The fox?<|turn|>\n<|endoftext|>assistant:"


@pytest.fixture(scope="module")
def chatty_base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny base with a special token that is no EOS and ends turns, like many a chat model."""
    from tests.tiny_models import build_tiny_base

    folder = build_tiny_base(tmp_path_factory.mktemp("turns"))
    file = folder / "tokenizer.json"
    saved = json.loads(file.read_text())
    spelt = next(token for token, number in saved["model"]["vocab"].items() if number == TURN)
    saved["model"]["vocab"].pop(spelt)
    saved["model"]["merges"] = [pair for pair in saved["model"]["merges"] if "".join(pair) != spelt]
    saved["added_tokens"].append({**saved["added_tokens"][0], "id": TURN, "content": "<|turn|>"})
    file.write_text(json.dumps(saved))
    return folder


@pytest.fixture(scope="module")
def world(chatty_base: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("world")
    (folder / "chat.jinja").write_text(TEMPLATE)
    bases = folder / "bases.toml"
    bases.write_text(f'[bases.tiny]\nsource = "{chatty_base}"\nchat_template = "chat.jinja"\n')
    yield from open_world(folder / "data", bases, engine_share_prompts="off")  # answers are compared to the last bit


@pytest.fixture(scope="module")
def soup(world: World) -> str:
    """The name of a soup of two adapters."""
    for number, name in enumerate(("team/first", "team/second")):
        world.push(name, seed=number)
    return str(cook_soup(world, "team/chat", {"team/first": 1, "team/second": 1})["model"])


def chat(world: World, model: str, **body: Any) -> Any:
    request = {"model": model, "messages": HELLO, "temperature": 0, "max_tokens": 12, **body}
    return answered(world.client.post("/v1/chat/completions", json=request))


def complete(world: World, **body: Any) -> Any:
    return answered(world.client.post("/v1/completions", json={"model": "tiny", "temperature": 0, **body}))


def test_a_soup_answers_a_conversation_with_its_own_weights(world: World, soup: str) -> None:
    """The answer equals that to the prompt written by hand, and no other model gives its probabilities."""
    soup_answer = chat(world, soup, logprobs=True)
    assert soup_answer["model"] == soup
    written = complete(world, model=soup, prompt=PROMPT, max_tokens=12, logprobs=0)
    assert soup_answer["system_fingerprint"] == written["system_fingerprint"]
    assert soup_answer["usage"] == written["usage"]
    assert soup_answer["choices"][0]["message"]["content"] == written["choices"][0]["text"]
    assert probabilities(soup_answer) == written["choices"][0]["logprobs"]["token_logprobs"]
    answers = [chat(world, model, logprobs=True) for model in ("tiny", "team/first", "team/second")]
    assert all(probabilities(answer)[0] != probabilities(soup_answer)[0] for answer in answers)


def probabilities(answer: Any) -> list[float]:
    """The log-probabilities of an answer's tokens."""
    return [token["logprob"] for token in answer["choices"][0]["logprobs"]["content"]]


def test_an_answer_ends_with_its_turn(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The token that the template puts behind an answer ends it, in a chat alone, and is not shown."""
    base = world.runtime.bases["tiny"].text
    assert (base.turn_id, base.eos_id) == (TURN, 0)
    prompt, drawn = tuple(base.tokenize(PROMPT)), SamplingParams(max_tokens=12, seed=5)
    (free,) = world.runtime.engine.submit(GenerateRequest("tiny", prompt, params=drawn)).result(60).choices
    at, token = next(
        (at, token_id) for at, token_id in enumerate(free.token_ids) if at and token_id not in free.token_ids[:at]
    )
    monkeypatch.setitem(vars(base), "turn_id", token)
    ended = chat(world, "tiny", temperature=1, seed=5)
    assert (ended["choices"][0]["finish_reason"], ended["usage"]["completion_tokens"]) == ("stop", at + 1)
    assert free.text.startswith(ended["choices"][0]["message"]["content"])
    assert complete(world, prompt=PROMPT, temperature=1, seed=5, max_tokens=12)["choices"][0]["text"] == free.text


def test_the_template_brings_its_own_bos(world: World) -> None:
    """`add_special_tokens` puts none in front of one; without it a template that has none gets none."""
    for special in (False, True):
        assert chat(world, "tiny", add_special_tokens=special)["usage"]["prompt_tokens"] == len(
            world.runtime.bases["tiny"].text.tokenize(PROMPT, bos=False)
        )
