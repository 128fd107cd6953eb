"""Chat with a base that has a template, the refusal where there is none, and answers that follow a schema."""

from __future__ import annotations

import json
import re
from typing import Any, Literal

import openai
import pytest
from pydantic import BaseModel

from service.engine import grammars
from tests.service.answers import refusal
from tests.service.servers import Live

SETTINGS = {"engine_share_prompts": "off"}  # answers to one prompt are compared to the last bit and token
TEMPLATE = (
    "{% for m in messages %}"
    "{% if m['role'] not in ['system', 'user', 'assistant'] %}{{ raise_exception('no such role') }}{% endif %}"
    "<|endoftext|>{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|endoftext|>assistant: {% endif %}"
)
TEMPLATES = {"chatty": TEMPLATE}
HELLO: list[Any] = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "The fox?"}]


def test_the_template_makes_the_prompt(live: Live, openai_client: Any) -> None:
    chat = openai_client.chat.completions.create(model="chatty", messages=HELLO, temperature=0, max_tokens=6)
    assert (chat.object, chat.choices[0].message.role) == ("chat.completion", "assistant")
    assert chat.system_fingerprint is not None
    text = "<|endoftext|>system: Be brief.\n<|endoftext|>user: The fox?\n<|endoftext|>assistant: "
    body = {"model": "chatty", "prompt": text, "add_special_tokens": False}
    ids = live.world.client.post("/tokenize", json=body).json()["tokens"]
    plain = openai_client.completions.create(model="chatty", prompt=ids, temperature=0, max_tokens=6)
    assert (chat.choices[0].message.content, chat.usage) == (plain.choices[0].text, plain.usage)
    assert chat.usage.prompt_tokens == len(ids)


def test_without_a_limit_the_answer_may_fill_the_context(openai_client: Any) -> None:
    answer = openai_client.chat.completions.create(model="chatty", messages=HELLO[1:], seed=1)
    assert answer.choices[0].finish_reason == "stop" or answer.usage.total_tokens == 64


def test_parts_of_text_are_one_text(openai_client: Any) -> None:
    content_parts = [{"type": "text", "text": "The "}, {"type": "text", "text": "fox"}]
    from_parts, from_text = (
        openai_client.chat.completions.create(
            model="chatty", messages=[{"role": "user", "content": content}], temperature=0, max_tokens=4
        )
        for content in (content_parts, "The fox")
    )
    assert (from_parts.choices, from_parts.usage) == (from_text.choices, from_text.usage)


@pytest.mark.parametrize("stream", [False, True])
def test_a_base_without_a_template_is_refused(live: Live, stream: bool) -> None:
    with pytest.raises(openai.BadRequestError, match="no chat template") as caught:
        live.openai().chat.completions.create(model="tiny", messages=HELLO, stream=stream)
    assert caught.value.param == "model"


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "role"),
        ({"messages": [{"role": "developer", "content": "x"}]}, "chat template does not take"),
        ({"messages": [{"role": "user"}]}, "content"),
        ({"messages": [{"role": "assistant", "content": "x", "refusal": "No."}]}, "refusal': is not supported"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x"}}]}]},
            "text",
        ),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "'tools': is not supported"),
        ({"reasoning_effort": "low"}, "'reasoning_effort': is not supported"),
        ({"verbosity": "low"}, "'verbosity': is not supported"),
        ({"audio": {"voice": "alloy", "format": "mp3"}}, "'audio': is not supported"),
        ({"prediction": {"type": "content", "content": "x"}}, "'prediction': is not supported"),
        ({"web_search_options": {}}, "'web_search_options': is not supported"),
        ({"extra_body": {"best_of": 2}}, "'best_of' is not known"),
        ({"n": 17}, "'n' is 17; at most 16 are given"),
        ({"max_completion_tokens": 10**9}, "less than or equal to 1000000"),
        ({"stop": ["a"] * 5}, "up to 4 texts"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "'top_logprobs' is 21; at most 20 are given"),
        ({"max_tokens": 3, "max_completion_tokens": 4}, "max_tokens"),
        ({"max_tokens": 1000}, "context"),
        ({"extra_body": {"guided_json": {}}}, "'guided_json' is not known"),
    ],
)
def test_what_is_wrong_is_refused_in_one_sentence(live: Live, ask: dict[str, Any], words: str) -> None:
    with pytest.raises(openai.BadRequestError, match=re.escape(words)):
        live.openai().chat.completions.create(**{"model": "chatty", "messages": HELLO, **ask})


@pytest.mark.parametrize("stream", [False, True])
def test_a_conversation_beyond_the_context_is_an_error_of_the_messages(live: Live, stream: bool) -> None:
    messages: list[Any] = [{"role": "user", "content": "word " * 300}]
    with pytest.raises(openai.BadRequestError, match="context") as caught:
        live.openai().chat.completions.create(model="chatty", messages=messages, stream=stream)
    assert caught.value.param == "messages"


def test_all_messages_and_names_together_are_one_text(live: Live) -> None:
    half = "word " * 120_000
    for messages in ([{"content": half}, {"content": half}], [{"content": half, "name": half}]):
        body = {"model": "chatty", "messages": [{"role": "user", **message} for message in messages]}
        answer = live.world.client.post("/v1/chat/completions", json=body)
        assert "'messages' has 1200000 characters; at most 1000000" in refusal(answer, 413)


def test_fields_that_ask_for_nothing_are_taken(live: Live) -> None:
    live.openai().chat.completions.create(
        model="chatty",
        messages=HELLO,
        max_tokens=1,
        tools=[],
        tool_choice="none",
        response_format={"type": "text"},
        parallel_tool_calls=True,
        user="me",
        modalities=["text"],
        presence_penalty=0,
        store=False,
        safety_identifier="me",
        prompt_cache_key="mine",
        reasoning_effort="none",
    )


def test_an_adapter_of_another_base_of_the_same_files_is_served_with_its_own(live: Live) -> None:
    live.world.push("team/adapter")
    with pytest.raises(openai.BadRequestError, match="no chat template"):
        live.openai().chat.completions.create(model="team/adapter", messages=HELLO)


def test_with_several_bases_the_tokenizer_calls_need_a_name(live: Live) -> None:
    client = live.world.client
    for answer in (
        client.get("/tokenizer_info"),
        client.post("/tokenize", json={"prompt": "a"}),
        client.post("/detokenize", json={"model": None, "tokens": [5]}),
    ):
        assert "this server has 2 base models ('chatty', 'tiny')" in refusal(answer)
        assert answer.json()["error"]["param"] == "model"


# --- `response_format` ------------------------------------------------------------------------------


SIGNS = ('"', "}", "]", ",", ":", "0")


class Dish(BaseModel):
    """A model whose schema the OpenAI client sends."""

    name: Literal["soup", "stew"]
    hot: bool


def schema_format(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}


@pytest.fixture(scope="module")
def bias(live: Live) -> dict[str, int]:
    """Makes the tiny model, which says anything, come to an end."""
    answers = [live.world.client.post("/tokenize", json={"model": "tiny", "prompt": sign}) for sign in SIGNS]
    return {str(answer.json()["tokens"][-1]): 100 for answer in answers}


def test_an_answer_is_an_object(live: Live, bias: dict[str, int]) -> None:
    answer = live.openai().chat.completions.create(
        model="chatty",
        messages=HELLO[1:],
        response_format={"type": "json_object"},
        max_tokens=40,
        n=4,
        seed=1,
        logit_bias=bias,
        temperature=20,
    )
    ended = [choice for choice in answer.choices if choice.finish_reason == "stop"]
    assert ended
    assert all(isinstance(json.loads(choice.message.content or ""), dict) for choice in ended)


def test_an_answer_is_a_model_of_pydantic(live: Live, bias: dict[str, int]) -> None:
    parsed = live.openai().chat.completions.parse(
        model="chatty", messages=HELLO[1:], response_format=Dish, max_tokens=43, temperature=0, logit_bias=bias
    )
    assert parsed.choices[0].message.parsed.name in {"soup", "stew"}


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")  # the client's, of its own `parsed`
@pytest.mark.parametrize(
    ("method", "form"), [("create", {"max_tokens": 4}), ("parse", {"max_tokens": 43, "response_format": Dish})]
)
def test_a_returned_message_can_be_sent_back(
    openai_client: Any, bias: dict[str, int], method: str, form: dict[str, Any]
) -> None:
    chat, user = openai_client.chat.completions, {"role": "user", "content": "a"}
    ask = {"model": "chatty", "temperature": 0, "logit_bias": bias}
    message = getattr(chat, method)(messages=[user], **ask, **form).choices[0].message
    messages = [message, {"role": "assistant", "content": message.content}]
    answers = [chat.create(messages=[turn], max_tokens=1, **ask) for turn in messages]
    assert answers[0].choices == answers[1].choices


def test_completions_of_several_prompts_follow_a_schema(live: Live) -> None:
    answer = live.openai().completions.create(
        model="tiny",
        prompt=["The fox", "A soup"],
        max_tokens=30,
        n=2,
        best_of=3,
        seed=2,
        echo=True,
        extra_body={"response_format": schema_format({"const": "soup"})},
    )
    assert [choice.text for choice in answer.choices] == [
        f'{front}"soup"' for front in ("The fox", "A soup") for _ in "ab"
    ]


@pytest.mark.parametrize(
    ("form", "words"),
    [
        (schema_format({"type": "object", "uniqueItems": True}), "uniqueItems"),
        (schema_format({"type": "string", "pattern": "("}), "regex parse error"),
        ({"type": "json_schema"}, "json_schema"),
        ({"type": "json_schema", "json_schema": {"name": "a b", "schema": {}}}, "name"),
        ({"type": "json_schema", "json_schema": {"name": "a"}}, "schema"),
        ({"type": "grammar"}, "response_format"),
        ({"type": "json_object", "schema": {}}, "'response_format.schema' is not known"),
        ("json", "response_format"),
    ],
)
def test_a_format_that_cannot_be_followed_is_refused(live: Live, form: Any, words: str) -> None:
    chat, text = {"messages": HELLO, "stream": True}, {"prompt": "a"}
    for path, more in (("/v1/chat/completions", chat), ("/v1/completions", text)):
        body = {"model": "chatty", "response_format": form, "max_tokens": 2, **more}
        answer = live.world.client.post(path, json=body)
        assert words in refusal(answer)
        assert answer.json()["error"]["param"].startswith("response_format")


def test_what_stops_in_a_stream_is_its_last_event(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    """A schema that takes too much work is known when the answer is under way."""
    monkeypatch.setitem(grammars.LIMITS, "max_lexer_states", 300)
    form = schema_format({"type": "string", "pattern": r"^(.*\w.{10,40}\W.*){20,30}$"})
    client = live.openai()
    with pytest.raises(openai.APIError, match=r"cannot be followed: after \d+ tokens"):
        list(
            client.chat.completions.create(
                model="chatty", messages=HELLO[1:], response_format=form, stream=True, seed=1, temperature=50
            )
        )
    answer = client.chat.completions.create(model="chatty", messages=HELLO[1:], max_tokens=1)
    assert answer.choices[0].finish_reason == "length"
