"""The examples of the documentation page, sent where what they need is there and where it is not, and its scripts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from registry.spec import Provenance
from service.http import examples
from tests.service.http.stock import push_embedded
from tests.service.passages import passages
from tests.service.servers import BASE_ID, World, open_world, write_bases

SETTINGS = {"training_workers": 0, "refit_delay_seconds": 0.0}
TEMPLATES = {BASE_ID: "{% for message in messages %}{{ message['content'] }}{% endfor %}"}
INIT = Provenance(init_hash="sha256:" + "1" * 64, init_source="declared").model_dump()
ABSENT = {"push_adapter", "change_key", "rotate_key", "change_key_limits"}
"""Calls that name bytes, or a key, which only their sender has."""


@pytest.fixture(scope="module", autouse=True)
def _stocked(world: World) -> None:
    """The adapters that the examples name, and the blob."""
    for seed, (name, texts) in enumerate({"kitchen": examples.SAMPLE, "law": passages("court", 25)}.items()):
        push_embedded(world, f"acme/{name}", texts, seed=seed, domain=name, provenance=INIT)
    world.client.put(f"/v1/blobs/{examples.DIGEST}", content=examples.LINES)


def operations(world: World) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """(method, path, operation) of the document that the page reads."""
    for path, methods in world.client.get("/openapi.json").json()["paths"].items():
        yield from ((method, path, operation) for method, operation in methods.items())


def filled(path: str, operation: dict[str, Any]) -> str:
    """The path with the examples of its parameters."""
    values = {
        parameter["name"]: parameter.get("example")
        for parameter in operation.get("parameters", ())
        if parameter["in"] == "path"
    }
    return re.sub(r"\{(\w+)\}", lambda match: str(values[match.group(1)]), path)


def sent(world: World) -> Iterator[tuple[str, str, int, str]]:
    """Every example's body, sent: the call, the example, and the answer's status and text."""
    for method, path, operation in operations(world):
        content = operation.get("requestBody", {}).get("content", {}).get("application/json")
        if content is not None:
            for name, example in content["examples"].items():
                answer = world.client.request(method, filled(path, operation), json=example["value"])
                yield operation["operationId"], name, answer.status_code, answer.text


def test_every_body_is_taken_where_what_it_needs_is_there(world: World) -> None:
    answers = list(sent(world))
    assert [answer for answer in answers if answer[2] == 422] == []
    assert [answer for answer in answers if answer[2] >= 300 and answer[0] not in ABSENT] == []
    assert [answer[2] for answer in answers if answer[0] in ABSENT] == [404] * 4


def test_every_part_of_a_path_is_filled_in_by_what_the_route_takes(world: World) -> None:
    for method, path, operation in operations(world):
        for parameter in operation.get("parameters", ()):
            assert ("example" in parameter) is bool(parameter.get("required")), (method, path, parameter["name"])
            if "example" in parameter:
                jsonschema.validate(parameter["example"], parameter["schema"])
        if method in ("get", "head") and "/events" not in path:
            assert world.client.request(method, filled(path, operation)).status_code in (200, 204, 206, 404), path


def test_an_example_that_needs_something_on_the_server_says_so(tiny_base_dir: Path, tmp_path: Path) -> None:
    """On a server without adapters, blobs and templates the others work, and only these are refused."""
    bases = write_bases(tmp_path / "bases.toml", {BASE_ID: tiny_base_dir})
    for world in open_world(tmp_path / "data", bases, **SETTINGS):
        summaries = {
            (operation["operationId"], name): example["summary"]
            for _, _, operation in operations(world)
            for name, example in (
                operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("examples", {})
            ).items()
        }
        refused = {(call, name) for call, name, status, _ in sent(world) if status >= 300}
    assert (
        refused
        == set(examples.NEEDS)
        == {call_and_name for call_and_name, summary in summaries.items() if "(needs " in summary}
    )
