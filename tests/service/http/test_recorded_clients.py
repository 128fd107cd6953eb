"""Requests of lm_eval, recorded once and sent to the tiny base: lm_eval itself need not be installed.

The version was 0.4.13 (`local-completions`, `tokenizer_backend=remote`), by a proxy in front of `soup serve`;
docs/how-to/use-openai-clients.md has the command. lm_eval measures how likely a continuation is by a prompt that
holds context and continuation, echoed, and takes the log-probabilities between the context's length and the last.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.service.answers import answered
from tests.service.servers import World

TEMPLATES = {"tiny": "{% for m in messages %}<|endoftext|>{{ m.role }}: {{ m.content }}\n{% endfor %}"}
LONG = "The court held that the contract was void for want of consideration. "
Score = tuple[float, bool]


class Harness:
    """lm_eval's `local-completions` with the tokenizer of the server; `ids` is its `tokenized_requests`."""

    def __init__(self, world: World, model: str, *, ids: bool) -> None:
        self.world, self.model, self.ids = world, model, ids
        self.info = world.client.get("/tokenizer_info").json()
        self.prefix = self.encode(self.info["bos_token"])[0] or self.encode(self.info["eos_token"])[0]

    def post(self, path: str, body: dict[str, Any]) -> Any:
        return answered(self.world.client.post(path, json=body))

    def encode(self, text: str) -> list[int]:
        return list(self.post("/tokenize", {"prompt": text, "add_special_tokens": False})["tokens"])

    def prompt(self, tokens: list[int]) -> Any:
        return [tokens] if self.ids else self.post("/detokenize", {"tokens": tokens})["prompt"]

    def score(self, context: list[int], continuation: list[int]) -> Score:
        body = {
            "model": self.model,
            "prompt": self.prompt(context + continuation),
            "temperature": 0,
            "max_tokens": 1,
            "logprobs": 1,
            "seed": 1234,
            "echo": True,
        }
        (choice,) = self.post("/v1/completions", body)["choices"]
        values = choice["logprobs"]["token_logprobs"][len(context) : -1]
        tops = choice["logprobs"]["top_logprobs"][len(context) : -1]
        assert len(values) == len(continuation)
        return sum(values), all(value == max(top.values()) for value, top in zip(values, tops, strict=True))

    def choice(self, context: str, continuation: str) -> Score:
        """The score of one answer to a multiple choice question."""
        whole, start = self.encode(context + continuation), len(self.encode(context))
        return self.score(whole[:start], whole[start:])

    def rolling(self, text: str) -> Score:
        """The score of a whole text, which fits into one window."""
        return self.score([self.prefix], self.encode(text))

    def generate(self, context: str) -> str:
        body = {
            "prompt": [self.encode(context)] if self.ids else context,
            "model": self.model,
            "max_tokens": 8,
            "temperature": 0,
            "stop": ["\n\n", self.info["eos_token"]],
            "seed": 1234,
        }
        return str(self.post("/v1/completions", body)["choices"][0]["text"])


@pytest.fixture(scope="module", params=["tiny", "team/measured"])
def model(request: pytest.FixtureRequest, world: World) -> str:
    world.push("team/measured", seed=3)
    return str(request.param)


@pytest.fixture
def both(world: World, model: str) -> tuple[Harness, Harness]:
    """One that sends token ids, and one that sends text."""
    return Harness(world, model, ids=True), Harness(world, model, ids=False)


def test_the_tokenizer_is_described_without_a_model(world: World) -> None:
    info = world.client.get("/tokenizer_info").json()
    assert info == world.client.get("/tokenizer_info", params={"model": "tiny"}).json()
    assert (info["eos_token"], info["bos_token"]) == ("<|endoftext|>", "<|endoftext|>")
    assert (info["pad_token"], info["chat_template"]) == (None, TEMPLATES["tiny"])


def test_a_text_has_the_same_likelihood_as_ids_and_as_text(both: tuple[Harness, Harness]) -> None:
    """It begins with the BOS, of which there is one either way; and it is what the server's perplexity is made of."""
    ids, text = both
    assert ids.rolling(LONG) == text.rolling(LONG)
    perplexity = ids.post("/v1/perplexity", {"model": ids.model, "texts": [LONG]})["texts"][0]
    assert ids.rolling(LONG)[0] == pytest.approx(-perplexity["nll"], rel=1e-5)


def test_an_answer_has_the_same_likelihood_where_its_context_begins_with_the_bos(
    both: tuple[Harness, Harness],
) -> None:
    """lm_eval does this with `--system_instruction` and the BOS token."""
    ids, text = both
    context = ids.info["bos_token"] + "The quick brown"
    assert ids.choice(context, " void for want") == text.choice(context, " void for want")
    assert ids.generate(context) == text.generate(context)


def test_without_it_text_gets_the_bos_and_ids_do_not(both: tuple[Harness, Harness]) -> None:
    """The page about lm_eval warns of this."""
    ids, text = both
    assert ids.choice("The quick brown", " fox") != text.choice("The quick brown", " fox")
    assert text.choice("The quick brown", " fox") == ids.choice(ids.info["bos_token"] + "The quick brown", " fox")
