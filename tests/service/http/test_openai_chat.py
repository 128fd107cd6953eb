"""Chat with a base that has a template, and the refusal where there is none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import openai
import pytest

from tests.service.servers import Live, with_template

SETTINGS = {"engine_share_prompts": "off"}  # answers to one prompt are compared to the last bit and token
TEMPLATE = (
    "{% for m in messages %}"
    "{% if m['role'] not in ['system', 'user', 'assistant'] %}{{ raise_exception('no such role') }}{% endif %}"
    "<|endoftext|>{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|endoftext|>assistant: {% endif %}"
)
HELLO: list[Any] = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "The fox?"}]


@pytest.fixture(scope="module")
def served(tiny_base_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {"tiny": tiny_base_dir, "chatty": with_template(tiny_base_dir, tmp_path_factory.mktemp("chat"), TEMPLATE)}


@pytest.fixture
def openai_client(live: Live) -> Any:
    """The real client, whose answers are not narrowed down."""
    return live.openai()


def test_the_template_makes_the_prompt(live: Live, openai_client: Any) -> None:
    chat = openai_client.chat.completions.create(model="chatty", messages=HELLO, temperature=0, max_tokens=6)
    assert (chat.object, chat.choices[0].message.role) == ("chat.completion", "assistant")
    assert chat.system_fingerprint is not None
    text = "<|endoftext|>system: Be brief.\n<|endoftext|>user: The fox?\n<|endoftext|>assistant: "
    asked = {"model": "chatty", "prompt": text, "add_special_tokens": False}
    ids = live.world.client.post("/tokenize", json=asked).json()["tokens"]
    plain = openai_client.completions.create(model="chatty", prompt=ids, temperature=0, max_tokens=6)
    assert chat.choices[0].message.content == plain.choices[0].text
    assert chat.usage == plain.usage
    assert chat.usage.prompt_tokens == len(ids)


def test_without_a_limit_the_answer_may_fill_the_context(openai_client: Any) -> None:
    answer = openai_client.chat.completions.create(model="chatty", messages=HELLO[1:], seed=1)
    assert answer.choices[0].finish_reason == "stop" or answer.usage.total_tokens == 64


def test_parts_of_text_are_one_text(openai_client: Any) -> None:
    parts = [{"type": "text", "text": "The "}, {"type": "text", "text": "fox"}]
    one, other = (
        openai_client.chat.completions.create(
            model="chatty", messages=[{"role": "user", "content": content}], temperature=0, max_tokens=4
        )
        for content in (parts, "The fox")
    )
    assert one.choices[0].message.content == other.choices[0].message.content
    assert one.usage == other.usage


def test_a_base_without_a_template_is_refused(live: Live) -> None:
    for stream in (False, True):
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
        ({"messages": [{"role": "user", "content": "word " * 300}]}, "context"),
        ({"extra_body": {"guided_json": {}}}, "'guided_json' is not known"),
    ],
)
def test_what_is_wrong_is_refused_in_one_sentence(live: Live, ask: dict[str, Any], words: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        live.openai().chat.completions.create(**{"model": "chatty", "messages": HELLO, **ask})
    assert words in caught.value.message


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
    answers = [
        client.get("/tokenizer_info"),
        client.post("/tokenize", json={"prompt": "a"}),
        client.post("/detokenize", json={"model": None, "tokens": [5]}),
    ]
    for answer in answers:
        assert answer.status_code == 400
        error = answer.json()["error"]
        assert error["param"] == "model"
        assert "this server has 2 base models ('chatty', 'tiny')" in error["message"]
