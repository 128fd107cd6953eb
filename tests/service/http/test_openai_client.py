"""The real `openai` client against the real server: what its users call works as they know it."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import openai
import pytest
import torch
from openai.types import EmbeddingCreateParams, chat, completion_create_params
from pydantic import BaseModel

from registry.base_model import load_base
from service.http.schemas.embeddings import EmbeddingRequest
from service.http.schemas.generation import ChatMessage, ChatRequest, CompletionRequest
from tests.service.answers import answered
from tests.service.servers import Live, World

pytestmark = pytest.mark.interop
PROMPT = "The quick brown"


@pytest.fixture(scope="module")
def soup(world: World) -> dict[str, Any]:
    return world.push("team/cooking", seed=5)


def test_a_completion(openai_client: Any, soup: dict[str, Any]) -> None:
    ask = {"prompt": PROMPT, "temperature": 0, "max_tokens": 8}
    base = openai_client.completions.create(model="tiny", **ask)
    assert (base.object, base.model) == ("text_completion", "tiny")
    assert base.choices[0].finish_reason in {"length", "stop"}
    assert base.usage.completion_tokens <= 8
    assert base.usage.total_tokens == base.usage.prompt_tokens + base.usage.completion_tokens
    assert base.system_fingerprint == soup["base_fingerprint"]
    raw = openai_client.completions.with_raw_response.create(model="team/cooking@1", **ask)
    assert raw.headers["x-soup-digest"] == soup["digest"]
    assert raw.headers["x-request-id"]
    adapted = raw.parse()
    assert adapted.choices[0].text != base.choices[0].text
    assert adapted.system_fingerprint == soup["digest"]


@pytest.mark.parametrize("form", ["tiny", "base/tiny", "team/cooking", "team/cooking@1", "digest"])
def test_every_way_to_name_a_model(openai_client: Any, soup: dict[str, Any], form: str) -> None:
    name = soup["digest"] if form == "digest" else form
    assert openai_client.completions.create(model=name, prompt=PROMPT, max_tokens=2).model == name
    assert openai_client.models.retrieve(name).id == name.removeprefix("base/")


def test_a_stream_says_what_the_whole_says(openai_client: Any, soup: dict[str, Any]) -> None:
    ask: dict[str, Any] = {"model": "team/cooking", "prompt": PROMPT, "temperature": 0.7, "seed": 7, "max_tokens": 12}
    whole = openai_client.completions.create(**ask)
    chunks = list(openai_client.completions.create(**ask, stream=True, stream_options={"include_usage": True}))
    choices = [chunk.choices[0] for chunk in chunks if chunk.choices]
    assert "".join(choice.text for choice in choices) == whole.choices[0].text
    assert [choice.finish_reason for choice in choices] == [None] * (len(choices) - 1) + [
        whole.choices[0].finish_reason
    ]
    assert [chunk.usage for chunk in chunks] == [None] * (len(chunks) - 1) + [whole.usage]
    assert {chunk.system_fingerprint for chunk in chunks} == {soup["digest"]}
    assert len({chunk.id for chunk in chunks}) == 1


def test_stop_strings_end_the_text(openai_client: Any) -> None:
    ask: dict[str, Any] = {"model": "tiny", "prompt": PROMPT, "temperature": 0, "max_tokens": 20}
    full = openai_client.completions.create(**ask).choices[0].text
    assert len(full) > 6
    stop = full[4:6]
    cut = openai_client.completions.create(**ask, stop=[stop, "never there"])
    assert (cut.choices[0].text, cut.choices[0].finish_reason) == (full[: full.index(stop)], "stop")
    streamed = "".join(
        chunk.choices[0].text for chunk in openai_client.completions.create(**ask, stop=stop, stream=True)
    )
    assert streamed == cut.choices[0].text


def test_embeddings_as_floats_and_as_the_client_asks_for_them(openai_client: Any) -> None:
    texts = ["The court held that the contract was void.", "Heat the oil.", "é \N{GRINNING FACE}"]
    packed = openai_client.embeddings.create(model="tiny", input=texts)  # asks for base64 and unpacks it
    plain = openai_client.embeddings.create(model="base/tiny", input=texts, encoding_format="float")
    assert [item.index for item in packed.data] == [0, 1, 2]
    vectors = [np.float32([item.embedding for item in answer.data]) for answer in (packed, plain)]
    assert vectors[0].shape == (3, 32)
    np.testing.assert_array_equal(*vectors)
    alone = openai_client.embeddings.create(model="tiny", input=texts[1], dimensions=32)
    np.testing.assert_allclose(alone.data[0].embedding, packed.data[1].embedding, atol=1e-5)
    assert packed.usage.prompt_tokens == packed.usage.total_tokens > 3


def ids_of(live: Live, text: str, **more: Any) -> list[int]:
    return list(live.world.client.post("/tokenize", json={"model": "tiny", "prompt": text, **more}).json()["tokens"])


def test_null_is_the_default_as_clients_send_it(live: Live) -> None:
    """LiteLLM does, of the encoding."""
    body = {"model": "tiny", "input": "a b", "encoding_format": None, "dimensions": None, "user": None}
    assert len(answered(live.world.client.post("/v1/embeddings", json=body))["data"][0]["embedding"]) == 32


def test_token_ids_without_a_bos_get_none(live: Live) -> None:
    """Rows with and without go to the engine apart, and come back in their order."""
    bare = [ids_of(live, text, add_special_tokens=False) for text in ("A soup", "x", "Heat the oil.")]
    mixed = [bare[0], [0, *bare[1]], bare[1], [0, *bare[2]]]
    answer = live.openai().embeddings.create(model="tiny", input=mixed)
    assert answer.usage.prompt_tokens == sum(map(len, mixed))
    model = load_base(live.world.runtime.bases["tiny"].entry).model
    for row, ids in zip(answer.data, mixed, strict=True):
        with torch.inference_mode():
            states = model.base_model(torch.tensor([ids])).last_hidden_state[0]
        text_states = states[1:] if ids[0] == 0 else states
        np.testing.assert_allclose(row.embedding, text_states.mean(dim=0), atol=1e-5)


@pytest.mark.parametrize(
    ("token_ids", "words"),
    [
        ([], "'input' holds no text"),
        ([[]], "Text 0 of 'input' is empty"),
        ([0], "Text 0 is empty but for special tokens"),
        ([[5, 6], [5, 300]], "'input.1' holds an id outside of the vocabulary (0 to 299)"),
        ([5] * 65, "Text 0 has 65 tokens; the context is 64"),
        ([[5], ["a"]], "'input': must be a text, a list of texts, a list of token ids, or a list of such lists"),
        ([5, "a"], "'input': must be a text"),
        ([True], "'input': must be a text"),
        ([[5]] * 5000, "at most"),
    ],
)
def test_token_ids_that_cannot_be_embedded_are_refused(live: Live, token_ids: Any, words: str) -> None:
    with pytest.raises(openai.APIStatusError, match=re.escape(words)) as caught:
        live.openai().embeddings.create(model="tiny", input=token_ids)
    assert caught.value.status_code in {400, 413}


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        ({"prompt": ""}, "prompt is empty"),
        ({"prompt": ["a", ""]}, "prompt is empty"),
        ({"prompt": [[]]}, "prompt is empty"),
        ({"prompt": "a " * 200}, "context"),
        ({"prompt": "a", "max_tokens": 1000}, "context"),
        ({"prompt": [5, 100000]}, "vocabulary"),
        ({"prompt": "a", "temperature": -1}, "temperature"),
        ({"prompt": "a", "top_p": 0}, "top_p"),
        ({"prompt": "a", "n": 0}, "'n'"),
        ({"prompt": "a", "n": 17}, "'n' is 17; at most 16 are given"),
        ({"prompt": "a", "max_tokens": 10**9}, "less than or equal to 1000000"),
        ({"prompt": "a", "max_tokens": -1}, "greater than or equal to 0"),
        ({"prompt": "a", "logprobs": 21}, "'logprobs' is 21; at most 20 are given"),
        ({"prompt": "a", "stop": ["a", "b", "c", "d", "e"]}, "up to 4 texts"),
        ({"prompt": "a", "stop": "a" * 501}, "beyond 500 characters"),
        ({"prompt": "a", "stop": ""}, "stop"),
        ({"prompt": "a", "presence_penalty": 2.5}, "presence_penalty"),
        ({"prompt": "a", "logit_bias": {"5": 101}}, "logit_bias"),
        ({"prompt": "a", "logit_bias": {"100000": 1}}, "logit_bias names token 100000"),
        ({"prompt": "a", "best_of": 0}, "best_of"),
        ({"prompt": "a", "n": 3, "best_of": 2}, "'best_of' is 2 and 'n' is 3"),
        ({"prompt": "a", "best_of": 17}, "'best_of' is 17; at most 16 are generated"),
        ({"prompt": "a", "best_of": 4, "stream": True}, "'best_of' is 4: choosing the best needs complete answers"),
        ({"prompt": "a", "stream_options": {"include_usage": True}}, "stream_options"),
        ({"prompt": "a", "suffix": "z"}, "'suffix': is not supported"),
        ({"prompt": "a", "extra_body": {"top_k": -2}}, "top_k"),
        ({"prompt": "a", "extra_body": {"min_p": 1.5}}, "min_p"),
        ({"prompt": "a", "extra_body": {"repetition_penalty": 0}}, "repetition_penalty"),
        ({"prompt": "a", "extra_body": {"repetition_penalty": 1e-38}}, "greater than or equal to 0.01"),
        ({"prompt": "a", "extra_body": {"typical_p": 0.5}}, "'typical_p' is not known"),
        ({"prompt": "a", "echo": True, "logprobs": 1, "stream": True}, "streamed"),
        ({"prompt": "a", "model": "../../etc"}, ""),
        ({"prompt": "a", "model": "base/tiny@1"}, ""),
    ],
)
def test_what_is_wrong_is_refused_in_one_sentence(live: Live, ask: dict[str, Any], words: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        live.openai().completions.create(**{"model": "tiny", **ask})
    assert words in caught.value.message
    assert caught.value.body["message"].endswith(".")  # type: ignore[index]
    assert caught.value.request_id


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("ask", "status"),
    [
        ({"max_tokens": 1000}, 400),
        ({"logprobs": 21}, 400),
        ({"model": "nothing"}, 404),
        ({"model": "team/nothing"}, 404),
        ({"model": "sha256:" + "0" * 64}, 404),
    ],
)
def test_a_stream_is_refused_as_an_answer_is(live: Live, ask: dict[str, Any], status: int, stream: bool) -> None:
    with pytest.raises(openai.APIStatusError) as caught:
        live.openai().completions.create(**{"model": "tiny", "prompt": "a", "stream": stream, **ask})
    assert caught.value.status_code == status


@pytest.mark.parametrize(
    ("openais", "ours"),
    [
        (chat.completion_create_params.CompletionCreateParamsBase, ChatRequest),
        (completion_create_params.CompletionCreateParamsBase, CompletionRequest),
        (EmbeddingCreateParams, EmbeddingRequest),
        (chat.ChatCompletionMessage, ChatMessage),
        (chat.ChatCompletionAssistantMessageParam, ChatMessage),
    ],
)
def test_every_field_that_openai_has_is_known_by_name(openais: type, ours: type[BaseModel]) -> None:
    assert set(openais.__annotations__) - set(ours.model_fields) == set(), "support it, or refuse it by name"


def test_fields_that_ask_for_nothing_are_taken(live: Live) -> None:
    live.openai().completions.create(
        model="tiny",
        prompt="a",
        max_tokens=1,
        user="somebody",
        presence_penalty=0,
        frequency_penalty=0.0,
        logit_bias={},
        best_of=1,
        suffix=None,
        stop=None,
        logprobs=None,
        extra_body={"service_tier": "auto", "store": False, "metadata": {"run": "1"}},
    )


def test_what_is_drawn_can_be_steered(openai_client: Any) -> None:
    def tokens(**options: Any) -> list[str]:
        answer = openai_client.completions.create(
            model="tiny", prompt="a", max_tokens=8, **{"temperature": 0, "logprobs": 1, **options}
        )
        return list(answer.choices[0].logprobs.tokens)

    plain = tokens()
    assert tokens(logit_bias={"70": 100}) == [tokens(logit_bias={"70": 100})[0]] * 8 != plain
    assert len(set(tokens(frequency_penalty=2))) >= len(set(plain))
    assert len(set(tokens(extra_body={"repetition_penalty": 10}))) == 8
    for sampling in ({"top_k": 1}, {"min_p": 1}):
        assert tokens(temperature=2, seed=1, extra_body=sampling) == plain, "one token is left to draw from"
    assert tokens(temperature=2, seed=1, extra_body={"top_k": -1}) == tokens(temperature=2, seed=1)


def test_the_best_are_those_with_the_highest_mean_log_probability(openai_client: Any) -> None:
    """The best are chosen for each of two prompts."""
    ask = {"model": "tiny", "prompt": [PROMPT, "Heat the oil"], "seed": 5, "max_tokens": 6, "stop": "e"}
    candidates = openai_client.completions.create(**ask, n=6, logprobs=2)

    def expected(n: int) -> list[Any]:
        """The n best of each prompt."""
        ranked = []
        for choices in (candidates.choices[:6], candidates.choices[6:]):
            means = [float(np.mean(choice.logprobs.token_logprobs)) for choice in choices]
            assert len(set(means)) == 6
            ranked += [choices[index] for index in np.argsort(means)[::-1][:n]]
        return ranked

    best = openai_client.completions.create(**ask, n=3, best_of=6, logprobs=2)
    assert [choice.index for choice in best.choices] == list(range(6))
    assert [(choice.text, choice.finish_reason) for choice in best.choices] == [
        (expected_choice.text, expected_choice.finish_reason) for expected_choice in expected(3)
    ]
    for choice, expected_choice in zip(best.choices, expected(3), strict=True):
        assert choice.logprobs.tokens == expected_choice.logprobs.tokens
        assert choice.logprobs.token_logprobs == pytest.approx(expected_choice.logprobs.token_logprobs, abs=1e-5)
        assert all(len(top) >= 2 for top in choice.logprobs.top_logprobs)
    assert best.usage == candidates.usage, "all that was generated counts"
    plain = openai_client.completions.create(**ask, n=6, best_of=6)
    assert [choice.text for choice in plain.choices] == [choice.text for choice in expected(6)]
    assert {choice.logprobs for choice in plain.choices} == {None}


def test_of_answers_without_a_token_the_first_are_the_best(openai_client: Any) -> None:
    answer = openai_client.completions.create(model="tiny", prompt=PROMPT, max_tokens=0, echo=True, n=1, best_of=3)
    assert [(choice.index, choice.text) for choice in answer.choices] == [(0, PROMPT)]
    assert answer.usage.completion_tokens == 0
