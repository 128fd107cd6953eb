"""One error shape, one status per class, one clear sentence, and nothing of ours or theirs leaks."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Annotated, Any

import pytest
from fastapi import APIRouter, FastAPI, HTTPException
from fastapi.staticfiles import StaticFiles
from fastapi.testclient import TestClient
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from registry import errors
from registry.errors import SoupError
from registry.names import Part
from registry.spec import CookRequest
from registry.spec.wording import describe_error
from service.http import problems
from tests.service.answers import refusal, refusal_with_code

EVERY = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, SoupError)]


class Inner(BaseModel):
    model_config = ConfigDict(extra="forbid")

    method: Annotated[str, Field(pattern="^bottleneck$")]


class Body(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: str
    count: int = Field(default=1, ge=1)
    config: Inner | None = None


@pytest.fixture
def client() -> TestClient:
    app = FastAPI()
    problems.install(app)

    @app.post("/body")
    def body(body: Body) -> dict[str, Any]:
        return {}

    @app.get("/raise/{name}")
    def fail(name: str) -> None:
        raise next(kind for kind in EVERY if kind.__name__ == name)("A sentence.")

    @app.get("/teapot")
    def teapot() -> None:
        raise HTTPException(418, "Short and stout", headers={"x-pot": "1"})

    router = APIRouter(prefix="/teapot")
    router.put("")(teapot)
    app.include_router(router)
    app.mount("/files", StaticFiles(directory=Path(__file__).parent))
    return TestClient(app)


@pytest.mark.parametrize("kind", EVERY, ids=lambda kind: kind.__name__)
def test_every_error_has_the_shape_and_a_status(client: TestClient, kind: type[SoupError]) -> None:
    answer = client.get(f"/raise/{kind.__name__}")
    assert answer.status_code == problems.status_of(kind("x"))
    assert 400 <= answer.status_code < 600
    error = answer.json()["error"]
    assert (set(error), error["code"]) == ({"message", "type", "param", "code"}, kind.code)


def test_busy_says_when_to_come_back_and_401_how_to_authenticate() -> None:
    assert problems.response_of(errors.Busy("Full.", retry_after=7)).headers["retry-after"] == "7"
    assert problems.response_of(errors.Unauthenticated("No key.")).headers["www-authenticate"] == "Bearer"


def test_a_broken_invariant_of_ours_is_not_shown() -> None:
    body = problems.body_of(errors.Internal("row 7 has secret x", problems=["secret x"]))
    assert "secret" not in body.model_dump_json()


def test_all_problems_are_listed() -> None:
    body = problems.body_of(errors.Incompatible("They differ.", problems=["base", "scale"]))
    assert body.error.problems == ["base", "scale"]


def test_half_a_surrogate_pair_in_a_message_does_not_break_the_answer() -> None:
    assert b"bad ?" in problems.response_of(errors.InvalidName("bad \ud800", param="\ud800", problems=["\udfff"])).body


@pytest.mark.parametrize(
    ("body", "message", "param"),
    [
        ({}, "Field 'name' is missing.", "name"),
        ({"name": 1}, "Field 'name': input should be a valid string.", "name"),
        ({"name": "a", "extra": 1}, "Field 'extra' is not known here.", "extra"),
        ({"name": "a", "count": 0}, "Field 'count': input should be greater than or equal to 1.", "count"),
        ([], "The body must be a JSON object sent with 'content-type: application/json'.", None),
    ],
)
def test_one_sentence_names_the_field(client: TestClient, body: Any, message: str, param: str | None) -> None:
    answer = client.post("/body", json=body)
    assert refusal_with_code(answer, 400, "invalid_parameter") == message
    assert answer.json()["error"]["param"] == param


@pytest.mark.parametrize(
    ("body", "listed", "more"),
    [
        ({"count": 0}, 2, "(1 more problem.)"),
        ({"count": 0, "extra": 1}, 3, "(2 more problems.)"),
        ({f"extra{number}": 1 for number in range(100)}, problems.MOST_LISTED, "(100 more problems.)"),
    ],
    ids=["two", "several", "very many"],
)
def test_all_problems_of_a_body_are_counted_and_the_first_are_listed(
    client: TestClient, body: dict[str, int], listed: int, more: str
) -> None:
    error = client.post("/body", json=body).json()["error"]
    assert error["message"].endswith(more)
    assert len(error["problems"]) == listed


def test_an_unknown_method_has_its_own_code(client: TestClient) -> None:
    answer = client.post("/body", json={"name": "a", "config": {"method": "magic"}})
    refusal_with_code(answer, 400, "unknown_method")
    assert answer.json()["error"]["param"] == "config.method"
    refusal_with_code(client.post("/body", json={"name": "a", "config": {}}), 400, "invalid_parameter")


def test_the_input_is_not_echoed(client: TestClient) -> None:
    assert "my private text" not in client.post("/body", json={"name": "a", "count": "my private text"}).text


@pytest.mark.parametrize(
    ("kind", "value", "wording"),
    [
        (tuple[int, ...], "x", "must be a list"),
        (Annotated[tuple[int, ...], Field(min_length=1)], [], "must have at least 1 item, and has 0"),
        (Annotated[list[int], Field(max_length=2)], [1, 2, 3], "must have at most 2 items, and has 3"),
        (Annotated[dict[str, int], Field(max_length=1)], {"a": 1, "b": 2}, "must have at most 1 entry"),
        (dict[str, int], [], "must be an object"),
        (CookRequest, 3, "must be an object"),
        (Annotated[str, Field(min_length=1)], "", "must have at least 1 character"),
        (Annotated[str, Field(max_length=2)], "abc", "must have at most 2 characters"),
        (Part, "Team", "must have 1 to 64 of a-z, 0-9, '.', '_' and '-', and start with a letter or digit"),
    ],
)
def test_what_is_wrong_is_said_in_the_words_of_json(kind: Any, value: Any, wording: str) -> None:
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(kind).validate_python(value)
    assert describe_error(caught.value.errors()[0]) == wording


def test_json_that_is_none(client: TestClient) -> None:
    answer = client.post("/body", content="{", headers={"content-type": "application/json"})
    assert refusal(answer, 400).startswith("The body is not valid JSON: ")


@pytest.mark.parametrize(
    ("field", "value", "param"),
    [
        ("mixing", {"scale": "nan"}, "mixing.scale"),
        ("mixing", {"method": "concat", "assume_same_init": True}, "mixing.assume_same_init"),
        ("mixing", {"method": "blend"}, "mixing.method"),
        ("selector", {"kind": "gmm", "dimensions": 0}, "selector.dimensions"),
        ("selector", {"kind": "uniform", "threshold": 1}, "selector.threshold"),
        ("selector", {"kind": "cosine", "threshold": "x"}, "selector.threshold"),
    ],
)
def test_a_field_is_named_as_it_was_sent(field: str, value: Any, param: str) -> None:
    with pytest.raises(ValidationError) as caught:
        CookRequest.model_validate({"sample": {"texts": ["a"]}, field: value})
    assert problems.from_validation(caught.value.errors()).param == param


def test_what_the_framework_raises_has_the_shape_too(client: TestClient) -> None:
    refusal_with_code(client.get("/nothing"), 404, "not_found")
    method = client.delete("/teapot")
    refusal_with_code(method, 405, "method_not_allowed")
    assert method.headers["allow"] == "GET, PUT"
    assert client.post("/files/style.css").headers["allow"] == "GET, HEAD"
    pot = client.get("/teapot")
    assert (pot.status_code, pot.headers["x-pot"]) == (418, "1")
    problems.ErrorBody.model_validate(pot.json())
