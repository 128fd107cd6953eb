"""The real `openai` client against the real server: what its users call works as they know it."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import openai
import pytest
import torch
from openai.types import EmbeddingCreateParams, chat, completion_create_params
from pydantic import BaseModel

from registry.base_model import load_base
from service.http.schemas.chat import ChatRequest
from service.http.schemas.completions import CompletionRequest
from service.http.schemas.embeddings import EmbeddingRequest
from tests.service.servers import Live, World

pytestmark = pytest.mark.interop
PROMPT = "The quick brown"


@pytest.fixture(scope="module")
def soup(world: World) -> dict[str, Any]:
    return world.push("team/cooking", seed=5)


def test_a_completion(live: Live, soup: dict[str, Any]) -> None:
    client = live.openai()
    base = client.completions.create(model="tiny", prompt=PROMPT, temperature=0, max_tokens=8)
    assert base.object == "text_completion"
    assert base.model == "tiny"
    assert base.choices[0].finish_reason in {"length", "stop"}
    assert base.usage is not None
    assert base.usage.completion_tokens <= 8
    assert base.usage.total_tokens == base.usage.prompt_tokens + base.usage.completion_tokens
    adapted = client.completions.create(model="team/cooking", prompt=PROMPT, temperature=0, max_tokens=8)
    assert adapted.choices[0].text != base.choices[0].text
    assert adapted.system_fingerprint == soup["digest"]
    assert base.system_fingerprint == soup["base_fingerprint"]


def test_the_digest_that_was_used_is_in_the_header(live: Live, soup: dict[str, Any]) -> None:
    raw = live.openai().completions.with_raw_response.create(model="team/cooking@1", prompt=PROMPT, max_tokens=1)
    assert raw.headers["x-soup-digest"] == soup["digest"]
    assert raw.parse().model == "team/cooking@1"
    assert raw.headers["x-request-id"]


@pytest.mark.parametrize("form", ["tiny", "base/tiny", "team/cooking", "team/cooking@1", "digest"])
def test_every_way_to_name_a_model(live: Live, soup: dict[str, Any], form: str) -> None:
    name = soup["digest"] if form == "digest" else form
    client = live.openai()
    answer = client.completions.create(model=name, prompt=PROMPT, max_tokens=2)
    assert answer.model == name
    found = client.models.retrieve(name)
    assert found.id == (name if not name.startswith("base/") else "tiny")


def test_models_are_listed(live: Live, soup: dict[str, Any]) -> None:
    ids = [model.id for model in live.openai().models.list()]
    assert ids[0] == "tiny"
    assert "team/cooking" in ids


def test_a_stream_says_what_the_whole_says(live: Live, soup: dict[str, Any]) -> None:
    client = live.openai()
    ask: dict[str, Any] = {"model": "team/cooking", "prompt": PROMPT, "temperature": 0.7, "seed": 7, "max_tokens": 12}
    whole = client.completions.create(**ask)
    chunks = list(client.completions.create(**ask, stream=True, stream_options={"include_usage": True}))
    assert "".join(chunk.choices[0].text for chunk in chunks if chunk.choices) == whole.choices[0].text
    reasons = [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices]
    assert reasons[-1] == whole.choices[0].finish_reason
    assert all(reason is None for reason in reasons[:-1])
    assert chunks[-1].usage == whole.usage
    assert all(chunk.usage is None for chunk in chunks[:-1])
    assert {chunk.system_fingerprint for chunk in chunks} == {soup["digest"]}
    assert len({chunk.id for chunk in chunks}) == 1


def test_several_prompts_times_n(live: Live) -> None:
    client = live.openai()
    ask: dict[str, Any] = {"model": "tiny", "prompt": ["Heat the oil", "The court"], "n": 2, "seed": 1, "max_tokens": 6}
    whole = client.completions.create(**ask)
    assert [choice.index for choice in whole.choices] == [0, 1, 2, 3]
    assert whole.choices[0].text != whole.choices[1].text
    streamed = ["", "", "", ""]
    finished = []
    for chunk in client.completions.create(**ask, stream=True):
        streamed[chunk.choices[0].index] += chunk.choices[0].text
        finished += [chunk.choices[0].index] if chunk.choices[0].finish_reason else []
    assert streamed == [choice.text for choice in whole.choices]
    assert sorted(finished) == [0, 1, 2, 3]


def test_a_seed_repeats_whatever_else_runs(live: Live, soup: dict[str, Any]) -> None:
    client = live.openai()

    def ask(model: str) -> str:
        return client.completions.create(model=model, prompt=PROMPT, seed=3, max_tokens=10).choices[0].text

    alone = {model: ask(model) for model in ("tiny", "team/cooking")}
    assert alone["tiny"] != alone["team/cooking"]
    with ThreadPoolExecutor(6) as pool:
        names = ["tiny", "team/cooking"] * 6
        assert list(pool.map(ask, names)) == [alone[name] for name in names]


def test_token_ids_are_taken_as_they_are(live: Live) -> None:
    client = live.openai()
    url = live.url
    headers = live.world.headers(live.world.admin)
    ids = httpx2.post(f"{url}/tokenize", json={"model": "tiny", "prompt": PROMPT}, headers=headers).json()["tokens"]
    assert ids[0] == 0  # BOS
    by_text = client.completions.create(model="tiny", prompt=PROMPT, temperature=0, max_tokens=6)
    by_ids = client.completions.create(model="tiny", prompt=ids, temperature=0, max_tokens=6)
    assert by_ids.choices[0].text == by_text.choices[0].text
    assert by_ids.usage == by_text.usage
    several = client.completions.create(model="tiny", prompt=[ids, ids[1:]], temperature=0, max_tokens=6)
    assert several.choices[0].text == by_text.choices[0].text
    assert several.usage is not None
    assert several.usage.prompt_tokens == 2 * len(ids) - 1


def test_stop_strings_end_the_text(live: Live) -> None:
    client = live.openai()
    ask: dict[str, Any] = {"model": "tiny", "prompt": PROMPT, "temperature": 0, "max_tokens": 20}
    full = client.completions.create(**ask).choices[0].text
    assert len(full) > 6
    stop = full[4:6]
    cut = client.completions.create(**ask, stop=[stop, "never there"])
    assert cut.choices[0].text == full[: full.index(stop)]
    assert cut.choices[0].finish_reason == "stop"
    streamed = "".join(chunk.choices[0].text for chunk in client.completions.create(**ask, stop=stop, stream=True))
    assert streamed == cut.choices[0].text


def test_logprobs(live: Live) -> None:
    answer = live.openai().completions.create(model="tiny", prompt=PROMPT, temperature=0, max_tokens=5, logprobs=3)
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.tokens is not None
    assert logprobs.token_logprobs is not None
    assert logprobs.top_logprobs is not None
    assert logprobs.text_offset is not None
    assert len(logprobs.tokens) == len(logprobs.token_logprobs) == len(logprobs.top_logprobs) == 5
    for token, value, top in zip(logprobs.tokens, logprobs.token_logprobs, logprobs.top_logprobs, strict=True):
        assert len(top) == 3
        assert top[token] == value == max(top.values())  # greedy: the very same float
    assert logprobs.text_offset[0] == 0
    assert sorted(logprobs.text_offset) == logprobs.text_offset


@pytest.mark.parametrize("k", [0, 1, 5])
def test_streamed_logprobs_are_the_whole_ones(live: Live, k: int) -> None:
    client = live.openai()
    ask: dict[str, Any] = {"model": "tiny", "prompt": PROMPT, "seed": 4, "max_tokens": 6, "logprobs": k}
    whole = client.completions.create(**ask).choices[0].logprobs
    assert whole is not None
    joined: dict[str, list[Any]] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
    for chunk in client.completions.create(**ask, stream=True):
        part = chunk.choices[0].logprobs
        for name, values in joined.items():
            values += getattr(part, name) if part is not None else []
    assert joined == whole.model_dump(include=set(joined))


def harness(live: Live, model: str, context: list[int], continuation: list[int]) -> tuple[float, bool]:
    """What a log-likelihood harness computes from `echo` and `logprobs`."""
    raw = live.openai().completions.with_raw_response.create(
        model=model, prompt=[context + continuation], max_tokens=1, echo=True, logprobs=1, temperature=0
    )
    logprobs = json.loads(raw.text)["choices"][0]["logprobs"]
    assert logprobs["token_logprobs"][0] is None
    assert logprobs["top_logprobs"][0] is None
    assert len(logprobs["tokens"]) == len(context) + len(continuation) + 1
    scored = logprobs["token_logprobs"][len(context) : -1]
    greedy = all(
        value == max(top.values())
        for value, top in zip(scored, logprobs["top_logprobs"][len(context) : -1], strict=True)
    )
    return sum(scored), greedy


def test_a_harness_gets_log_likelihoods(live: Live, soup: dict[str, Any]) -> None:
    context, continuation = [0, 50, 60, 70], [80, 90, 100]
    for model in ("tiny", "team/cooking"):
        value, greedy = harness(live, model, context, continuation)
        longer, _ = harness(live, model, context, [*continuation, 110])
        assert value < 0
        assert longer < value
        assert not greedy
    assert harness(live, "tiny", context, continuation) != harness(live, "team/cooking", context, continuation)
    best = live.openai().completions.create(model="tiny", prompt=context, max_tokens=3, temperature=0, logprobs=0)
    headers = live.world.headers(live.world.admin)
    assert best.choices[0].logprobs is not None
    told = httpx2.post(
        f"{live.url}/v1/completions",
        json={"model": "tiny", "prompt": PROMPT, "max_tokens": 0, "echo": True, "logprobs": 1},
        headers=headers,
    ).json()
    assert told["choices"][0]["text"] == PROMPT
    assert told["usage"]["completion_tokens"] == 0


def test_echo_leaves_the_bos_out(live: Live) -> None:
    answer = live.openai().completions.create(
        model="tiny", prompt=PROMPT, echo=True, logprobs=1, max_tokens=2, temperature=0
    )
    choice = answer.choices[0]
    assert choice.text.startswith(PROMPT)
    assert choice.logprobs is not None
    assert choice.logprobs.tokens is not None
    assert choice.logprobs.text_offset is not None
    assert "<|endoftext|>" not in choice.logprobs.tokens[:1]
    assert choice.logprobs.text_offset[0] == 0
    echoed = [
        token for token, at in zip(choice.logprobs.tokens, choice.logprobs.text_offset, strict=True) if at < len(PROMPT)
    ]
    assert "".join(echoed) == PROMPT
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == len(echoed) + 1


def test_echo_can_be_streamed_without_logprobs(live: Live) -> None:
    chunks = live.openai().completions.create(model="tiny", prompt=PROMPT, echo=True, max_tokens=3, seed=1, stream=True)
    assert "".join(chunk.choices[0].text for chunk in chunks).startswith(PROMPT)


def test_embeddings_as_floats_and_as_the_client_asks_for_them(live: Live) -> None:
    client = live.openai()
    texts = ["The court held that the contract was void.", "Heat the oil.", "é \N{GRINNING FACE}"]
    packed = client.embeddings.create(model="tiny", input=texts)  # the client asks for base64 and unpacks it
    plain = client.embeddings.create(model="base/tiny", input=texts, encoding_format="float")
    assert [item.index for item in packed.data] == [0, 1, 2]
    for one, other in zip(packed.data, plain.data, strict=True):
        assert len(one.embedding) == 32
        np.testing.assert_array_equal(np.float32(one.embedding), np.float32(other.embedding))
    alone = client.embeddings.create(model="tiny", input=texts[1])
    np.testing.assert_allclose(alone.data[0].embedding, packed.data[1].embedding, atol=1e-5)
    assert packed.usage.prompt_tokens == packed.usage.total_tokens > 3


def ids_of(live: Live, text: str, **more: Any) -> list[int]:
    asked = {"model": "tiny", "prompt": text, **more}
    answer = live.world.client.post("/tokenize", json=asked, headers=live.world.headers(live.world.admin))
    found: list[int] = answer.json()["tokens"]
    return found


def test_embeddings_of_token_ids_are_those_of_their_text(live: Live) -> None:
    client = live.openai()
    texts = ["The court held that the contract was void.", "Heat the oil.", "é"]
    wanted = client.embeddings.create(model="tiny", input=texts)
    ids = [ids_of(live, text) for text in texts]
    found = client.embeddings.create(model="tiny", input=ids)
    assert found.usage == wanted.usage
    for one, other in zip(found.data, wanted.data, strict=True):
        np.testing.assert_allclose(one.embedding, other.embedding, atol=1e-6)
    alone = client.embeddings.create(model="tiny", input=ids[1], encoding_format="float")
    np.testing.assert_allclose(alone.data[0].embedding, wanted.data[1].embedding, atol=1e-6)
    assert len(alone.data) == 1


def test_null_is_the_default_as_clients_send_it(live: Live) -> None:
    """LiteLLM does, of the encoding."""
    asked = {"model": "tiny", "input": "a b", "encoding_format": None, "dimensions": None, "user": None}
    answer = live.world.client.post("/v1/embeddings", json=asked)
    assert answer.status_code == 200, answer.text
    assert len(answer.json()["data"][0]["embedding"]) == 32


def test_token_ids_without_a_bos_get_none(live: Live) -> None:
    """Rows with and without go to the engine apart, and come back in their order."""
    bare = [ids_of(live, text, add_special_tokens=False) for text in ("A soup", "x", "Heat the oil.")]
    mixed = [bare[0], [0, *bare[1]], bare[1], [0, *bare[2]]]
    found = live.openai().embeddings.create(model="tiny", input=mixed)
    assert found.usage.prompt_tokens == sum(map(len, mixed))
    model = load_base(live.world.runtime.bases["tiny"].entry).model
    for row, ids in zip(found.data, mixed, strict=True):
        with torch.inference_mode():
            states = model.base_model(torch.tensor([ids])).last_hidden_state[0]
        wanted = states[1:] if ids[0] == 0 else states
        np.testing.assert_allclose(row.embedding, wanted.mean(dim=0), atol=1e-5)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ([], "'input' holds no text"),
        ([[]], "Text 0 of 'input' is empty"),
        ([[5], []], "Text 1 of 'input' is empty"),
        ([0], "Text 0 holds nothing but the BOS"),
        ([[5, 6], [5, 300]], "'input.1' holds an id outside of the vocabulary (0 to 299)"),
        ([5] * 65, "Text 0 has 65 tokens; the context is 64"),
        ([[5], ["a"]], "'input': must be a text, a list of texts, a list of token ids, or a list of such lists"),
        ([5, "a"], "'input': must be a text"),
        ([-1], "'input': must be a text"),
        ([True], "'input': must be a text"),
        ([5.5], "'input': must be a text"),
        ([[5]] * 5000, "at most"),
    ],
)
def test_token_ids_that_cannot_be_embedded_are_refused(live: Live, given: Any, words: str) -> None:
    with pytest.raises(openai.APIStatusError) as caught:
        live.openai().embeddings.create(model="tiny", input=given)
    assert words in caught.value.message
    assert caught.value.status_code in {400, 413}


@pytest.mark.parametrize(
    ("ask", "kind", "words"),
    [
        ({"prompt": ""}, openai.BadRequestError, "prompt is empty"),
        ({"prompt": []}, openai.BadRequestError, "prompt is empty"),
        ({"prompt": ["a", ""]}, openai.BadRequestError, "prompt is empty"),
        ({"prompt": [[]]}, openai.BadRequestError, "prompt is empty"),
        ({"prompt": "a " * 200}, openai.BadRequestError, "context"),
        ({"prompt": "a", "max_tokens": 1000}, openai.BadRequestError, "context"),
        ({"prompt": [5, 100000]}, openai.BadRequestError, "vocabulary"),
        ({"prompt": [-1]}, openai.BadRequestError, "prompt"),
        ({"prompt": "a", "temperature": -1}, openai.BadRequestError, "temperature"),
        ({"prompt": "a", "top_p": 0}, openai.BadRequestError, "top_p"),
        ({"prompt": "a", "n": 0}, openai.BadRequestError, "'n'"),
        ({"prompt": "a", "n": 17}, openai.BadRequestError, "'n' is 17; at most 16 are given"),
        ({"prompt": "a", "n": 10**40}, openai.BadRequestError, "at most 16 are given"),
        ({"prompt": "a", "max_tokens": 10**9}, openai.BadRequestError, "less than or equal to 1000000"),
        ({"prompt": "a", "max_tokens": -1}, openai.BadRequestError, "greater than or equal to 0"),
        ({"prompt": "a", "logprobs": 21}, openai.BadRequestError, "'logprobs' is 21; at most 20 are given"),
        ({"prompt": "a", "stop": ["a", "b", "c", "d", "e"]}, openai.BadRequestError, "up to 4 texts"),
        ({"prompt": "a", "stop": "a" * 501}, openai.BadRequestError, "beyond 500 characters"),
        ({"prompt": "a", "stop": ""}, openai.BadRequestError, "stop"),
        ({"prompt": "a", "presence_penalty": 2.5}, openai.BadRequestError, "presence_penalty"),
        ({"prompt": "a", "logit_bias": {"5": 101}}, openai.BadRequestError, "logit_bias"),
        ({"prompt": "a", "logit_bias": {"five": 1}}, openai.BadRequestError, "logit_bias"),
        ({"prompt": "a", "logit_bias": {"100000": 1}}, openai.BadRequestError, "logit_bias names token 100000"),
        ({"prompt": "a", "best_of": 0}, openai.BadRequestError, "best_of"),
        ({"prompt": "a", "n": 3, "best_of": 2}, openai.BadRequestError, "'best_of' is 2 and 'n' is 3"),
        ({"prompt": "a", "best_of": 17}, openai.BadRequestError, "'best_of' is 17; at most 16 are generated"),
        ({"prompt": "a", "suffix": "z"}, openai.BadRequestError, "'suffix': is not supported"),
        ({"prompt": "a", "extra_body": {"top_k": -2}}, openai.BadRequestError, "top_k"),
        ({"prompt": "a", "extra_body": {"min_p": 1.5}}, openai.BadRequestError, "min_p"),
        ({"prompt": "a", "extra_body": {"repetition_penalty": 0}}, openai.BadRequestError, "repetition_penalty"),
        ({"prompt": "a", "extra_body": {"typical_p": 0.5}}, openai.BadRequestError, "'typical_p' is not known"),
        ({"prompt": "a", "echo": True, "logprobs": 1, "stream": True}, openai.BadRequestError, "streamed"),
        ({"prompt": "a", "model": "nothing"}, openai.NotFoundError, "no base model"),
        ({"prompt": "a", "model": "team/nothing"}, openai.NotFoundError, ""),
        ({"prompt": "a", "model": "sha256:" + "0" * 64}, openai.NotFoundError, ""),
        ({"prompt": "a", "model": "../../etc"}, openai.BadRequestError, ""),
        ({"prompt": "a", "model": "base/tiny@1"}, openai.BadRequestError, ""),
    ],
)
def test_what_is_wrong_is_refused_in_one_sentence(
    live: Live, ask: dict[str, Any], kind: type[openai.APIStatusError], words: str
) -> None:
    for stream in (False, True):
        with pytest.raises(kind) as caught:
            live.openai().completions.create(**{"model": "tiny", "stream": stream, **ask})
        assert words in caught.value.message
        assert caught.value.body["message"].endswith(".")
        assert caught.value.request_id


@pytest.mark.parametrize(
    ("openais", "ours"),
    [
        (chat.completion_create_params.CompletionCreateParamsBase, ChatRequest),
        (completion_create_params.CompletionCreateParamsBase, CompletionRequest),
        (EmbeddingCreateParams, EmbeddingRequest),
    ],
)
def test_every_field_that_openai_has_is_known_by_name(openais: type, ours: type[BaseModel]) -> None:
    assert set(openais.__annotations__) - set(ours.model_fields) == set(), "support it, or refuse it by name"


@pytest.mark.parametrize(
    "extra",
    [
        {"user": "somebody"},
        {"presence_penalty": 0, "frequency_penalty": 0.0},
        {"logit_bias": {}, "best_of": 1},
        {"suffix": None, "stop": None, "logprobs": None},
        {"extra_body": {"service_tier": "auto", "store": False, "metadata": {"run": "1"}}},
    ],
)
def test_fields_that_ask_for_nothing_are_taken(live: Live, extra: dict[str, Any]) -> None:
    live.openai().completions.create(model="tiny", prompt="a", max_tokens=1, **extra)


def test_what_is_drawn_can_be_steered(live: Live) -> None:
    def tokens(**asked: Any) -> list[str]:
        answer = live.openai().completions.create(
            model="tiny", prompt="a", max_tokens=8, **{"temperature": 0, "logprobs": 1, **asked}
        )
        return list(answer.choices[0].logprobs.tokens)

    plain = tokens()
    assert tokens(logit_bias={"70": 100}) == [tokens(logit_bias={"70": 100})[0]] * 8 != plain
    assert len(set(tokens(frequency_penalty=2))) >= len(set(plain))
    assert len(set(tokens(extra_body={"repetition_penalty": 10}))) == 8
    for one in ({"top_k": 1}, {"min_p": 1}):
        assert tokens(temperature=2, seed=1, extra_body=one) == plain, "one token is left to draw from"
    assert tokens(temperature=2, seed=1, extra_body={"top_k": -1}) == tokens(temperature=2, seed=1)


@pytest.mark.parametrize("ask", [{"best_of": 4}, {"n": 2, "best_of": 2}])
def test_the_best_of_several_cannot_be_streamed(live: Live, ask: dict[str, Any]) -> None:
    with pytest.raises(openai.BadRequestError, match=f"'best_of' is {ask['best_of']}: the best are known at the end"):
        live.openai().completions.create(model="tiny", prompt="a", stream=True, **ask)


@pytest.mark.parametrize("prompt", [PROMPT, [PROMPT, "Heat the oil"]])
def test_the_best_are_those_with_the_highest_mean_log_probability(live: Live, prompt: Any) -> None:
    client, count = live.openai(), 1 if isinstance(prompt, str) else len(prompt)
    ask: dict[str, Any] = {"model": "tiny", "prompt": prompt, "seed": 5, "max_tokens": 6, "stop": "e"}
    every = client.completions.create(**ask, n=6, logprobs=2)

    def expected(n: int) -> list[Any]:
        """The n best of each prompt."""
        found = []
        for number in range(count):
            own = every.choices[6 * number : 6 * number + 6]
            means = [float(np.mean(choice.logprobs.token_logprobs)) for choice in own]  # type: ignore[union-attr,arg-type]
            assert len(set(means)) == 6
            found += [own[index] for index in np.argsort(means)[::-1][:n]]
        return found

    best = client.completions.create(**ask, n=3, best_of=6, logprobs=2)
    assert [choice.index for choice in best.choices] == list(range(3 * count))
    assert [(one.text, one.finish_reason) for one in best.choices] == [(o.text, o.finish_reason) for o in expected(3)]
    for one, other in zip(best.choices, expected(3), strict=True):
        assert one.logprobs is not None
        assert one.logprobs.tokens == other.logprobs.tokens
        assert one.logprobs.token_logprobs == pytest.approx(other.logprobs.token_logprobs, abs=1e-5)
        assert all(len(top) >= 2 for top in one.logprobs.top_logprobs or ())
    assert best.usage == every.usage, "all that was generated counts"
    plain = client.completions.create(**ask, n=6, best_of=6)
    assert [choice.text for choice in plain.choices] == [choice.text for choice in expected(6)]
    assert {choice.logprobs for choice in plain.choices} == {None}


def test_of_answers_without_a_token_the_first_are_the_best(live: Live) -> None:
    ask: dict[str, Any] = {"model": "tiny", "prompt": PROMPT, "max_tokens": 0, "echo": True}
    answer = live.openai().completions.create(**ask, n=1, best_of=3)
    assert [(choice.index, choice.text) for choice in answer.choices] == [(0, PROMPT)]


def test_stream_options_without_a_stream_are_refused(live: Live) -> None:
    with pytest.raises(openai.BadRequestError, match="stream_options"):
        live.openai().completions.create(model="tiny", prompt="a", stream_options={"include_usage": True})


def test_a_retired_model_is_410(live: Live) -> None:
    live.world.push("team/gone", seed=9)
    assert live.world.client.delete("/v1/adapters/team/gone").status_code == 200
    with pytest.raises(openai.APIStatusError) as caught:
        live.openai().completions.create(model="team/gone", prompt="a")
    assert caught.value.status_code == 410
    assert caught.value.code == "retired"


def test_errors_of_keys(live: Live) -> None:
    with pytest.raises(openai.AuthenticationError):
        live.openai("sk-soup-" + "0" * 43).completions.create(model="tiny", prompt="a")
    with pytest.raises(openai.PermissionDeniedError):
        live.openai(live.world.key(["read"])).completions.create(model="tiny", prompt="a")


def test_an_adapter_that_cannot_be_loaded_is_an_error_and_never_the_base(live: Live) -> None:
    pushed = live.world.push("team/broken", seed=11)
    digest = pushed["weights_blob"].removeprefix("sha256:")
    (file,) = [
        path for path in Path(live.world.runtime.settings.blobs_dir).rglob("*") if path.name.endswith(digest[2:])
    ]
    file.chmod(0o600)
    file.write_bytes(file.read_bytes()[:-4] + b"\x00\x00\x80\x7f")
    for stream in (False, True):
        with pytest.raises(openai.APIStatusError) as caught:
            live.openai().completions.create(model="team/broken", prompt="a", stream=stream)
        assert caught.value.status_code >= 400
    file.unlink()
    with pytest.raises(openai.APIStatusError):
        live.openai().completions.create(model="team/broken", prompt="a")
    assert live.openai().completions.create(model="tiny", prompt="a", max_tokens=1).choices
