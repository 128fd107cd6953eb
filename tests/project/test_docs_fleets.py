"""The tables of the page about scale: the measured points beside the line, and what the model says of each fleet."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.fleet_model import fitted, hits, most_busy, zipf
from docs import figures, fleets

ROWS = [
    {"working_set": f"{factor}x", "loads_a_request": loads, "tokens_per_s": 16 / (0.1 + 0.05 * loads)}
    for factor, loads in ((1, 0.1), (2, 0.5), (4, 0.9))
]


@pytest.fixture
def results(tmp_path: Path) -> Path:
    found = {"date": "2026-01-01", "commit": "0" * 40, "machine": {}, "rows": ROWS, "figures": {}}
    (tmp_path / "set.json").write_text(json.dumps(found))
    return tmp_path


def cells(block: str) -> list[list[str]]:
    """The rows of a table, without its head."""
    lines = [line for line in block.splitlines() if line.startswith("| ")]
    return [line.strip("| ").split(" | ") for line in lines[1:]]


def test_measured_points_stand_beside_the_line(results: Path) -> None:
    block = figures.block(results, "set", "work")
    assert cells(block)[1] == ["2x", "0.500", "125.0", "125.0", "+0.0"]
    assert "takes 100.0 ms of a busy engine, a load 50.0 ms more" in block
    assert "Source: `benchmarks/results/set.json`, 2026-01-01" in block


def test_routes_are_compared_to_random_with_as_many_clients(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleets, "CLIENTS", (6,))
    plain, routed, led = cells(figures.block(results, "set", "routes"))
    assert plain[:5] == ["6", "at random", f"{hits(zipf(200, 1.0), 40):.2f}", "1.00", "0.00"]
    assert [routed[1], led[1]] == ["by adapter", "by adapter, a lead of 16"]
    assert float(routed[3]) == pytest.approx(float(routed[2]) / float(plain[2]), abs=0.02)
    assert routed[2:] == led[2:]  # six requests fill no server: none goes to its second


def measured(folder: Path, *, routed: float, random: float) -> str:
    rows = [
        {"part": "affinity", "way": way, "replicas": 3, "slots": 40, "adapters": 200, "requests": 10, "held": held}
        for way, held in (("routed", routed), ("random", random))
    ]
    found = {"date": "2026-01-01", "commit": "0" * 40, "machine": {}, "rows": [{"part": "wrong"}, *rows], "figures": {}}
    (folder / "scale.json").write_text(json.dumps(found))
    return figures.block(folder, "scale", "affinity")


def test_the_model_is_held_to_what_was_measured(tmp_path: Path) -> None:
    random = hits(zipf(200, 1.0), 40)
    block = measured(tmp_path, routed=0.88, random=random * 1.1)
    assert cells(block)[1] == ["find their adapter, at random", f"{random:.3f}", f"{1.1 * random:.3f}", "+10.0"]
    assert "Within the 20%" in block
    assert "misses" not in block


def test_a_miss_of_the_model_is_shown(tmp_path: Path) -> None:
    block = measured(tmp_path, routed=0.5, random=hits(zipf(200, 1.0), 40))
    assert (
        "**The model misses**: by more than 20% in find their adapter, by the router; the one over the other." in block
    )


def test_fleets_are_bounded_by_their_most_popular_adapter(results: Path) -> None:
    rows = {(row[0], row[1], row[2], row[3]): row[4:] for row in cells(figures.block(results, "set", "fleets"))}
    assert len(rows) == len(fleets.FLEETS)
    popularity, work = zipf(10**7, 1.0), fitted(ROWS, tokens=16)
    hit = hits(popularity, 4000)
    rate = work.tokens_per_s(hit)
    assert rows["100", "40", "10,000,000", "1"][1:5] == [
        f"{hit:.2f}", f"{most_busy(popularity):.1f}", f"{rate * most_busy(popularity):,.0f}", f"{rate * 100:,.0f}"
    ]  # fmt: skip
    small = rows["3", "40", "200", "1"]
    assert small[2] == "3.0"
    assert small[3] == small[4]
