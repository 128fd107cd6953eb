"""Code that all benchmarks share: the form of results, what is judged by them, and what is published of a run."""

from __future__ import annotations

import json
import subprocess
from datetime import datetime
from pathlib import Path

import numpy as np
import pytest

from benchmarks import (
    acceptance,
    report,
)
from demo import results
from demo.results import Figure

pytestmark = pytest.mark.slow

RESULTS = Path(report.__file__).parent / "results"


def test_a_result_is_written_whole_or_not_at_all(tmp_path):
    out = tmp_path / "deep" / "x.json"
    repeated = report.repeated([3.0, 1.0, 2.0], "s", goal=0.5)
    report.Result({"y_s": repeated, "n": Figure(7, "adapters", note="all")}, [{"a": 1}]).finish(out)
    first = out.read_text()
    check_form(json.loads(first), "x")
    assert json.loads(first)["figures"] == {
        "y_s": {"value": 2.0, "goal": 0.5, "unit": "s", "repeats": [3.0, 1.0, 2.0]},
        "n": {"value": 7, "goal": None, "unit": "adapters", "repeats": [], "note": "all"},
    }
    with pytest.raises(ValueError, match="JSON compliant"):
        report.Result({"y_s": results.Figure(float("nan"), "s")}).finish(out)
    assert out.read_text() == first
    assert [file.name for file in out.parent.iterdir()] == ["x.json"]


def test_the_commit_says_when_the_tree_has_changed(tmp_path, monkeypatch):
    monkeypatch.setattr(results, "ROOT", tmp_path)
    assert results.commit() is None

    def git(*arguments: str) -> None:
        identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
        subprocess.run(["git", *identity, *arguments], cwd=tmp_path, check=True, capture_output=True)

    git("init")
    for name in ("code.py", "benchmarks/results/x.json"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("1")
    git("add", ".")
    git("commit", "-m", "one")
    (tmp_path / "benchmarks/results/x.json").write_text("2")
    clean = results.commit()
    assert len(clean) == 40
    (tmp_path / "code.py").write_text("2")
    assert results.commit() == f"{clean}-dirty"


def test_acceptance_judges_every_case_on_every_number_of_passages():
    result = acceptance.run(draws=2)
    assert set(result.figures) == set(acceptance.FIGURES)
    assert len(result.rows) == len(acceptance.PASSAGES) * sum(len(cases) for cases, _ in acceptance.FIGURES.values())
    assert all(row["claimed"] in {0, 0.5, 1} for row in result.rows)
    helps = acceptance.Case(8, ways=2, worse=-1.0)
    assert helps.claimed(np.random.default_rng(0), 3) == 1  # so that the rule is asked at all


def check_form(result: dict, name: str) -> None:
    """The form that `docs.figures` reads."""
    assert set(result) == {"name", "command", "date", "commit", "machine", "figures", "rows"}
    assert result["name"] == name
    assert datetime.fromisoformat(result["date"]).utcoffset() is not None
    assert {"processor", "flags", "cores", "torch"} <= set(result["machine"])
    for key, figure in result["figures"].items():
        assert {"value", "unit"} <= set(figure) <= {"value", "goal", "unit", "repeats", "note", "date", "commit"}, key
        assert not str(figure.get("commit")).endswith("-dirty"), "measure on a committed tree"
        for ending, unit in (("_ms", "ms"), ("_cpu_s", "CPU s"), ("_s", "s")):
            if key.endswith(ending) and not key.endswith("_per_s"):
                assert figure["unit"] == unit, key
                break
    assert all(isinstance(row, dict) for row in result["rows"])


@pytest.mark.parametrize("file", sorted(RESULTS.glob("*.json")), ids=lambda file: file.stem)
def test_committed_results_have_the_form(file):
    result = json.loads(file.read_text())
    check_form(result, file.stem)
    assert not str(result["commit"]).endswith("-dirty"), "measure on a committed tree"


def test_a_published_command_shows_no_password_and_no_folder_of_the_machine() -> None:
    inside, outside = str(results.ROOT / "benchmarks" / "results" / "a.json"), "/home/someone/models/Some-Model"
    url = "postgresql+psycopg://user:secret@host/name"

    command = results.command_line(
        "demo", ["--out", inside, "--base", outside, f"--data={outside}", "--database-url", url, "3"]
    )

    assert command == (
        "python -m demo --out benchmarks/results/a.json --base Some-Model --data=Some-Model "
        "--database-url postgresql+psycopg://... 3"
    )


def test_a_part_is_put_beside_others_or_is_the_first_of_a_file(tmp_path):
    out = tmp_path / "parts.json"

    def measure_of(name: str, value: float) -> report.Part:
        def measured(result: report.Result, _arguments: object) -> None:
            result.figures[name] = Figure(value, "s")
            result.rows.append({"part": name, "value": value})

        return measured

    for only, value in (("one", 1.0), ("two", 2.0), ("one", 3.0)):
        measures = {name: measure_of(name, value) for name in ("one", "two")}
        report.run_parts(report.options("Parts."), measures, ["--only", only, "--out", str(out)])
    written = json.loads(out.read_text())
    assert {name: figure["value"] for name, figure in written["figures"].items()} == {"one": 3.0, "two": 2.0}
    assert sorted(row["value"] for row in written["rows"]) == [2.0, 3.0]
    assert written["figures"]["one"].keys() - {"value", "goal", "unit", "repeats"} == {"date", "commit"}
