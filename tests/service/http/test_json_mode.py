"""`response_format` over HTTP, with the real `openai` client: objects, schemas, streams, several choices, refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import openai
import pytest
from pydantic import BaseModel

from tests.service.http.test_openai_chat import HELLO, TEMPLATE
from tests.service.servers import Live, with_template

SIGNS = ('"', "}", "]", ",", ":", "0")


class Dish(BaseModel):
    """What a client of OpenAI's sends the schema of."""

    name: Literal["soup", "stew"]
    hot: bool


def asked(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}


@pytest.fixture(scope="module")
def served(tiny_base_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {"tiny": tiny_base_dir, "chatty": with_template(tiny_base_dir, tmp_path_factory.mktemp("chat"), TEMPLATE)}


@pytest.fixture(scope="module")
def bias(live: Live) -> dict[str, int]:
    """Makes the tiny model, which says anything, come to an end."""
    answers = [live.world.client.post("/tokenize", json={"model": "tiny", "prompt": sign}) for sign in SIGNS]
    return {str(answer.json()["tokens"][-1]): 100 for answer in answers}


def test_an_object(live: Live, bias: dict[str, int]) -> None:
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


def test_a_model_of_pydantic(live: Live, bias: dict[str, int]) -> None:
    client: Any = live.openai()
    parsed = client.chat.completions.parse(
        model="chatty", messages=HELLO[1:], response_format=Dish, max_tokens=43, temperature=0, logit_bias=bias
    )
    assert parsed.choices[0].message.parsed.name in {"soup", "stew"}


def test_completions_of_several_prompts(live: Live) -> None:
    answer = live.openai().completions.create(
        model="tiny",
        prompt=["The fox", "A soup"],
        max_tokens=30,
        n=2,
        best_of=3,
        seed=2,
        echo=True,
        extra_body={"response_format": asked({"const": "soup"})},
    )
    assert [choice.text for choice in answer.choices] == [
        f'{front}"soup"' for front in ("The fox", "A soup") for _ in "ab"
    ]


@pytest.mark.parametrize(
    ("form", "words"),
    [
        (asked({"type": "object", "uniqueItems": True}), "uniqueItems"),
        (asked({"type": "string", "pattern": "("}), "regex parse error"),
        ({"type": "json_schema"}, "json_schema"),
        ({"type": "json_schema", "json_schema": {"name": "a b", "schema": {}}}, "name"),
        ({"type": "json_schema", "json_schema": {"name": "a"}}, "schema"),
        ({"type": "grammar"}, "response_format"),
        ({"type": "json_object", "schema": {}}, "'response_format.schema' is not known"),
        ("json", "response_format"),
    ],
)
def test_what_cannot_be_followed_is_refused(live: Live, form: Any, words: str) -> None:
    chat, text = {"messages": HELLO, "stream": True}, {"prompt": "a"}
    for path, more in (("/v1/chat/completions", chat), ("/v1/completions", text)):
        body = {"model": "chatty", "response_format": form, "max_tokens": 2, **more}
        answer = live.world.client.post(path, json=body)
        error = answer.json()["error"]
        assert answer.status_code == 400, error
        assert words in error["message"]
        assert error["param"].startswith("response_format")


def test_a_schema_that_is_too_large_is_refused_with_the_numbers(live: Live) -> None:
    with pytest.raises(openai.APIStatusError, match="at most 65536 are taken") as caught:
        live.openai().chat.completions.create(
            model="chatty", messages=HELLO, response_format=asked({"enum": ["a" * 70_000]})
        )
    assert caught.value.status_code == 413


def test_what_stops_in_a_stream_is_its_last_event(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    """A schema that takes too much work is known when the answer is under way."""
    from service.engine import grammars

    monkeypatch.setitem(grammars.LIMITS, "max_lexer_states", 300)
    form = asked({"type": "string", "pattern": r"^(.*\w.{10,40}\W.*){20,30}$"})
    client = live.openai()
    with pytest.raises(openai.APIError, match=r"cannot be followed: after \d+ tokens"):
        for _ in client.chat.completions.create(
            model="chatty", messages=HELLO[1:], response_format=form, stream=True, seed=1, temperature=50
        ):
            pass
    again = client.chat.completions.create(model="chatty", messages=HELLO[1:], max_tokens=1)
    assert again.choices[0].finish_reason == "length"
