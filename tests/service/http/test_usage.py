"""Usage over HTTP: the sum of what the answers said, seen by whom it concerns, and there after a restart."""

from __future__ import annotations

import csv
import io
import json
import random
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from adaptersoup.client.client import SoupClient
from registry.catalogue import Database
from registry.catalogue.audit import Audit
from registry.catalogue.usage import GROUPS, Usage, UsageFilter, UsageRow, UsageSum
from registry.errors import Busy
from service.http.files.csv_lines import csv_lines
from service.http.routes.activity import usage_cells
from service.observability.usage import UsageCounts
from tests.postgres import KINDS
from tests.service.answers import answered, refusal
from tests.service.http.stock import TEMPLATE
from tests.service.servers import Soup, World, open_world, write_bases

DATABASES = KINDS
pytestmark = pytest.mark.one_database  # rows and sums are asked of each kind in tests/registry/catalogue
TEMPLATES = {"tiny": TEMPLATE}


def new_key(world: World, *namespaces: str, scopes: tuple[str, ...] = ("infer",)) -> tuple[str, dict[str, str]]:
    """The id of a key and its header."""
    body = {"name": "one", "scopes": list(scopes), "namespaces": list(namespaces) or None}
    key = world.client.post("/v1/keys", json=body).json()
    return key["id"], world.headers(key["secret"])


def usage(world: World, headers: dict[str, str] | None = None, **params: Any) -> Any:
    return answered(world.client.get("/v1/usage", params=params, headers=headers))


def drawn(random: random.Random) -> tuple[str, dict[str, Any]]:
    """A call that infers, some of them wrong."""
    model = random.choice(["tiny", "base/tiny", "mixed/law", "mixed/law@1", "mixed/unknown"])
    sampling = {"model": model, "max_tokens": random.choice([0, 1, 3, 5000]), "seed": 1, "n": random.choice([1, 3])}
    kind = random.choice(["text", "texts", "chat", "embed", "wrong"])
    if kind == "embed":
        return "/v1/embeddings", {"model": model, "input": ["heat", "the oil"]}
    stream = random.choice([{}, {"stream": True, "stream_options": {"include_usage": True}}])
    if kind == "chat":
        sampling["max_tokens"] = sampling["max_tokens"] or 2
        return "/v1/chat/completions", sampling | stream | {"messages": [{"role": "user", "content": "a b"}]}
    prompt: Any = {"text": "a b c", "texts": ["a", "b c d"], "wrong": ""}[kind]
    return "/v1/completions", sampling | stream | {"prompt": prompt}


def used(answer: Any) -> tuple[int, int] | None:
    """The tokens read and generated that an answer tells of; None where it is an error."""
    if answer.status_code != 200:
        return None
    text = answer.text
    if answer.headers["content-type"].startswith("text/event-stream"):
        text = text.split("data: ")[-2]
    counts = json.loads(text)["usage"]
    return counts["prompt_tokens"], counts.get("completion_tokens") or 0


def test_usage_is_the_sum_of_what_the_answers_said(world: World) -> None:
    world.push("mixed/law", seed=3)
    key_id, headers = new_key(world, "mixed")
    draw, token_counts = random.Random(11), list[tuple[int, int]]()
    calls = [drawn(draw) for _ in range(40)]
    for path, body in calls:
        counts = used(world.client.post(path, json=body, headers=headers))
        token_counts += [] if counts is None else [counts]
    assert 10 < len(token_counts) < len(calls)
    summary = usage(world, headers)
    assert summary["total"] == {
        "requests": len(token_counts),
        "tokens_in": sum(read for read, _ in token_counts),
        "tokens_out": sum(written for _, written in token_counts),
    }
    assert {(row["model"], row["namespace"], row["key_id"]) for row in summary["data"]} == {
        ("base/tiny", "mixed", key_id),
        ("mixed/law@1", "mixed", key_id),
    }, "each model has one name"


def test_of_two_models_compared_each_has_its_tokens(world: World) -> None:
    world.push("compared/law", seed=3)
    _, headers = new_key(world, "compared")
    body = {"model": "compared/law", "baseline": "tiny", "texts": ["a b c", "d"]}
    assert world.client.post("/v1/perplexity", json=body, headers=headers).status_code == 200
    rows = {row["model"]: row for row in usage(world, headers)["data"]}
    assert {model: row["requests"] for model, row in rows.items()} == {"compared/law@1": 1, "base/tiny": 0}
    assert rows["compared/law@1"]["tokens_in"] == rows["base/tiny"]["tokens_in"] > 0


def test_who_sees_what(world: World) -> None:
    world.push("ours/law", seed=3)
    ask = {"prompt": "a b", "max_tokens": 1}
    ours, our_headers = new_key(world, "ours")
    theirs, their_headers = new_key(world, "theirs")
    both, both_headers = new_key(world, "theirs", "ours")
    for headers, model in (
        (our_headers, "ours/law"),
        (their_headers, "tiny"),
        (both_headers, "ours/law"),
        (both_headers, "tiny"),
    ):
        assert world.client.post("/v1/completions", json={"model": model, **ask}, headers=headers).status_code == 200

    def visible(headers: dict[str, str], **params: Any) -> set[tuple[str, str]]:
        return {(row["key_id"], row["namespace"]) for row in usage(world, headers, limit=100, **params)["data"]}

    assert visible(our_headers) == {(ours, "ours")}
    assert visible(our_headers, key_id=theirs) == visible(our_headers, namespace="theirs") == set()
    assert visible(new_key(world, "ours", scopes=("admin",))[1]) == {(ours, "ours"), (both, "ours")}
    assert visible(new_key(world, scopes=("read",))[1]) == set(), "it sees all namespaces, and is no admin"
    assert visible(world.headers(world.admin)) >= {(ours, "ours"), (both, "ours"), (both, "theirs"), (theirs, "theirs")}
    assert usage(world, our_headers, namespace="theirs")["total"]["requests"] == 0


def test_sums_by_less_and_days(world: World) -> None:
    _, headers = new_key(world, "summed")
    for _ in range(2):
        world.client.post("/v1/embeddings", json={"model": "tiny", "input": "a b"}, headers=headers)
    (row,) = usage(world, headers, by=["day", "model"])["data"]
    assert (row["key_id"], row["namespace"], row["model"], row["requests"]) == (None, None, "base/tiny", 2)
    assert usage(world, headers, until=row["day"])["data"] == []
    assert usage(world, headers, since=row["day"])["data"]
    for wrong in (
        {"by": "hour"},
        {"since": "yesterday"},
        {"since": "0"},
        {"format": "xml"},
        {"cursor": "x"},
        {"limit": 0},
    ):
        assert world.client.get("/v1/usage", params=wrong).status_code == 400, wrong


def test_csv_is_all_of_it(world: World, client: SoupClient, soup: Soup, monkeypatch: pytest.MonkeyPatch) -> None:
    world.client.post("/v1/completions", json={"model": "tiny", "prompt": "a", "max_tokens": 1})
    everything = usage(world, limit=200)["data"]
    small = world.runtime.settings.model_copy(update={"max_page_size": 2})
    with monkeypatch.context() as patched:
        patched.setattr(world.runtime, "services", replace(world.runtime.services, settings=small))
        answer = world.client.get("/v1/usage", params={"format": "csv"})
    assert answer.headers["content-type"].startswith("text/csv")
    rows = list(csv.DictReader(io.StringIO(answer.text)))
    assert len(everything) > 2
    assert rows == [{name: str(row[name]) for name in (*GROUPS, *UsageSum().__dict__)} for row in everything]
    assert client.usage_csv(by=["model"]).splitlines()[0] == "model,requests,tokens_in,tokens_out"
    code, out, _ = soup("usage", "--csv")
    assert (code, list(csv.reader(io.StringIO(out)))[1:]) == (0, [list(row.values()) for row in rows])
    code, out, _ = soup("usage", "--by", "namespace", "--since", date.min.isoformat())
    assert (code, out.split()[:2]) == (0, ["NAMESPACE", "REQUESTS"])


@pytest.mark.parametrize(("path", "table"), [("/v1/usage", Usage), ("/v1/audit", Audit)])
def test_a_csv_without_a_first_page_is_an_error(
    world: World, path: str, table: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table, "list", Mock(side_effect=Busy("The database is busy.")))
    assert refusal(world.client.get(path, params={"format": "csv"}), 429) == "The database is busy."


@pytest.mark.parametrize("begin", ["=", "+", "-", "@", "\t", "\r"])
def test_no_cell_of_the_csv_is_a_formula(begin: str) -> None:
    row = UsageRow(1, 2, 3, day="2026-01-01", key_id='a",b', namespace="n", model=f"{begin}cmd|' /C calc'!A0")
    (line,) = csv.reader(io.StringIO(csv_lines([usage_cells(GROUPS)(row)]), newline=""))
    assert line == ["2026-01-01", 'a",b', "n", f"'{row.model}", "1", "2", "3"]


def test_numbers_of_the_csv_stay_numbers() -> None:
    assert csv_lines([[-0.25, -3, 1e-9, None, True, "-0.25"]]) == "-0.25,-3,1e-09,,True,'-0.25\r\n"


def test_what_was_counted_is_there_after_a_restart(tmp_path: Path, tiny_base_dir: Path) -> None:
    bases = write_bases(tmp_path / "bases.toml", {"tiny": tiny_base_dir})
    for world in open_world(tmp_path / "data", bases, usage_seconds=3600):
        assert world.client.post("/v1/embeddings", json={"model": "tiny", "input": "a b"}).status_code == 200
    for world in open_world(tmp_path / "data", bases, preload=False):
        assert usage(world)["total"]["requests"] == 1


def test_what_cannot_be_written_is_kept(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = UsageCounts(database, day=lambda: date(2026, 1, 31))
    counts.count("key-a", "n", "base/tiny", UsageSum(1, 5, 2))

    with monkeypatch.context() as patch:
        patch.setattr(database, "write", Mock(side_effect=Busy("The database is busy with other writes: try again.")))
        with pytest.raises(Busy):
            counts.write()
    counts.count("key-a", "n", "base/tiny", UsageSum(1, 5, 2))
    counts.write()
    with database.read() as catalogue:
        (row,) = catalogue.usage.list(UsageFilter("key-a", ()), limit=9).rows
    assert row == UsageRow(2, 10, 4, day="2026-01-31", key_id="key-a", namespace="n", model="base/tiny")
