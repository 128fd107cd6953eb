"""Other uses of a sample and the map of domains on the page about soups: what a results file holds is what is shown."""

from __future__ import annotations

import json
import random
import re
from itertools import combinations
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from docs import ensembles, figures
from service.pictures import LETTER, LINE, domain_map

ROW = {"passages": 100, "standard_error": 0.01}
ROWS: list[dict[str, Any]] = [
    {**ROW, "domain": "law", "way": "base", "difference": 0.0},
    {**ROW, "domain": "law", "way": "em ensemble", "difference": -0.1},
    {**ROW, "domain": "zoo", "way": "em ensemble", "difference": -0.1},
    {**ROW, "domain": "law", "way": "fresh with dropout", "difference": -0.3},
    {**ROW, "domain": "zoo", "way": "fresh with dropout", "difference": 0.01},
    {"map": "training", "domain": "courts", "x": 1.0, "y": -0.5},
    {"map": "training", "domain": "birds & <bees>", "x": -1.0, "y": 0.5},
    {"map": "novel", "domain": "law", "x": 0.9, "y": -0.4, "nearest": {"courts": 0.75, "birds & <bees>": 0.25}},
    {"map": "novel", "domain": "zoo", "x": -0.9, "y": 0.4, "nearest": {"birds & <bees>": 1.0}},
]


@pytest.fixture
def results(tmp_path: Path) -> Path:
    found = {
        "date": "2026-01-01", "commit": "0" * 40, "machine": {"processor": "x", "cores": 2}, "rows": ROWS,
        "figures": {"map_variance": {"value": 0.256}},
    }  # fmt: skip
    (tmp_path / "ensembles.json").write_text(json.dumps(found))
    return tmp_path


def test_ways_stand_in_order_with_their_errors(results: Path) -> None:
    lines = figures.block(results, "ensembles", "others").splitlines()
    ways = [line for line in lines if line.startswith("| ") and "±" in line]
    assert ways == [
        "| fresh with dropout | -13.5 ± 0.6 | 1 | 2 |",
        "| em ensemble | -9.5 ± 0.6 | 2 | 2 |",
    ]


def test_behind_the_map_there_is_what_is_near_and_where_everything_is(results: Path) -> None:
    block = figures.block(results, "ensembles", "map")
    assert "have 26 % of the variance" in block
    assert "(pictures/ensembles_map.svg)" in block
    assert "| law | courts 0.75 | birds & <bees> 0.25 |  |" in block
    assert "| courts | training | +1.000 | -0.500 |" in block
    (picture,) = ensembles.pictures(results).items()
    assert picture[0].name == "ensembles_map.svg"
    root = ElementTree.fromstring(picture[1])
    assert {"law", "zoo", "courts", "birds & <bees>"} <= {one.text for one in root.iter() if one.text}
    widths = [float(one.attrib["stroke-width"]) for one in root.iter() if one.tag.endswith("line")]
    assert len(widths) == 3
    assert widths[2] > widths[0] > widths[1]


def test_without_a_result_there_is_no_map(tmp_path: Path) -> None:
    assert ensembles.pictures(tmp_path) == {}
    assert "Not measured yet" in figures.block(tmp_path, "ensembles", "map")


def boxes(svg: str) -> dict[str, tuple[float, float, float, float]]:
    """Where names are, as wide as they are taken to be."""
    found = {}
    for one in ElementTree.fromstring(svg).iter():
        if "name" in one.attrib.get("class", "").split():
            assert one.text is not None
            wide, x, y = LETTER * len(one.text), float(one.attrib["x"]), float(one.attrib["y"])
            left = x - {"start": 0.0, "middle": 0.5, "end": 1.0}[one.attrib["text-anchor"]] * wide
            found[one.text] = (left, y + 3 - LINE, left + wide, y + 3)
    return found


def meet(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    return all(one[axis] < other[axis + 2] - 0.2 and other[axis] < one[axis + 2] - 0.2 for axis in (0, 1))


@pytest.mark.parametrize("seed", range(5))
def test_no_name_covers_another_or_a_mark(seed: int) -> None:
    draw = random.Random(seed)
    points = {f"some_domain_{number}": (draw.gauss(0, 1), draw.gauss(0, 1)) for number in range(31)}
    points["far_away"] = (6.0, 6.0)  # so that all others are close together
    known, new = ({name: at for name, at in points.items() if (name[-1] in "123") is kind} for kind in (False, True))
    svg = domain_map("Map", known=known, new=new, lines={}, named=("old", "new"), across="x", up="y")
    found = boxes(svg)
    assert set(found) == set(points)
    assert not [pair for pair in combinations(found, 2) if meet(found[pair[0]], found[pair[1]])]
    discs = [
        tuple(float(one.attrib[name]) for name in ("cx", "cy")) for one in ElementTree.fromstring(svg).iter()
        if one.tag.endswith("circle")
    ]  # fmt: skip
    assert len(discs) == len(known) + 1  # and its key
    assert not [at for at in discs for box in found.values() if meet(box, (at[0] - 3, at[1] - 3, at[0] + 3, at[1] + 3))]


def test_names_are_legible_in_the_dark_too() -> None:
    svg = domain_map("M", known={"a": (0, 0)}, new={"b": (1, 1)}, lines={}, named=("k", "n"), across="x", up="y")
    schemes = re.compile(r"@media\(prefers-color-scheme:dark\){(.*?})}")
    for text, style in (("#fff", schemes.sub("", svg)), ("#0d1117", "".join(schemes.findall(svg)))):
        assert re.search(rf"\.name{{[^}}]*stroke:{text}", style)
