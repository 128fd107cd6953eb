"""The benchmarks measure what they say: small runs of each, and the form of every result that is committed."""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import numpy as np
import pytest

from benchmarks import (
    acceptance,
    decoding,
    report,
    scoring,
    selection,
    training,
    vllm,
    working_set,
)
from benchmarks.peers import vllm_server
from demo import results
from demo.results import Figure
from registry.base_model import load_base
from registry.errors import Internal
from registry.selectors import updating
from registry.spec import BaseEntry
from tests.tiny_models import build_tiny_base

pytestmark = pytest.mark.slow

RESULTS = Path(report.__file__).parent / "results"
TINY = {"layers": 1, "hidden": 64, "vocabulary": 2048}


def test_a_result_is_written_whole_or_not_at_all(tmp_path):
    out = tmp_path / "deep" / "x.json"
    repeated = report.repeated([3.0, 1.0, 2.0], "s", goal=0.5)
    report.Result("x", {"y_s": repeated, "n": Figure(7, "adapters", note="all")}, [{"a": 1}]).finish(out)
    first = out.read_text()
    check_form(json.loads(first), "x")
    assert json.loads(first)["figures"] == {
        "y_s": {"value": 2.0, "goal": 0.5, "unit": "s", "repeats": [3.0, 1.0, 2.0]},
        "n": {"value": 7, "goal": None, "unit": "adapters", "repeats": [], "note": "all"},
    }
    with pytest.raises(ValueError, match="JSON compliant"):
        report.Result("x", {"y_s": results.Figure(float("nan"), "s")}).finish(out)
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
    assert clean is not None
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


def test_every_variant_of_training_takes_steps(tiny_base_dir):
    for variant in training.VARIANTS:
        row = training.measure(tiny_base_dir, variant, dtype="float32", steps=1, block=16)
        assert min(row["step_s"], row["peak_memory_mib"], row["parameters_trained"]) > 0, variant


def test_a_published_command_shows_no_password_and_no_folder_of_the_machine() -> None:
    inside, outside = str(results.ROOT / "benchmarks" / "results" / "a.json"), "/home/someone/models/Some-Model"
    url = "postgresql+psycopg://user:secret@host/name"

    said = results.command_line(
        "demo", ["--out", inside, "--base", outside, f"--data={outside}", "--database-url", url, "3"]
    )

    assert said == (
        "python -m demo --out benchmarks/results/a.json --base Some-Model --data=Some-Model "
        "--database-url postgresql+psycopg://... 3"
    )


@pytest.fixture
def tiny_llama(tmp_path):
    return load_base(BaseEntry(id="tiny", source=str(build_tiny_base(tmp_path / "llama", model_type="llama"))))


def test_decoding_writes_the_same_by_every_way(tmp_path, tiny_llama):
    result = decoding.run(tiny_llama, rows=4, more=6, tokens=6, repeats=1, environments=tmp_path)
    ours = {"base", "one_lora", "mixed", "mixed_bottlenecks", "base_6", "mixed_6"}
    missing = {row["way"]: row["missing"] for row in result.rows if row["missing"] is not None}
    assert {row["way"] for row in result.rows} == ours | {"transformers", "transformers_6", "peft"} | set(missing)
    assert set(missing) == {"adapters", "vllm", "vllm_lora", "llama_cpp"}
    assert all("make bench-peers" in why for why in missing.values())
    assert {"base_vs_hf", "base_6_vs_hf", "mixed_6_vs_base", "mixed_vs_peft_fp32"} <= set(result.figures)
    assert not {"mixed_vs_vllm", "mixed_vs_adapters"} & set(result.figures)
    assert result.figures["mixed_vs_base"].note == "tokens/s; 4 rows; stretch 0.97"


def test_decoding_refuses_to_compare_what_differs():
    rows = [[(1,), (2,)], [(3,), (4,)]]
    written = {"base": rows[0], "transformers": rows[0], "mixed": rows[1], "peft": rows[1]}
    decoding.check(written, exact=True)
    for wrong in ({"peft": rows[0]}, {"transformers": rows[1]}, {"mixed": rows[0], "peft": rows[0]}):
        with pytest.raises(Internal):
            decoding.check(written | wrong, exact=True)
    decoding.check(written | {"transformers": rows[1]}, exact=False)


def test_log_probabilities_are_compared_up_to_the_first_other_token():
    one = vllm.Written((1, 2, 3), (-1.0, -2.0, -3.0))
    assert vllm.difference(one, vllm.Written((1, 2, 4), (-1.5, -2.0, -9.0))) == 0.5
    assert vllm.difference(one, vllm.Written((9, 2, 3), (-9.0, -9.0, -9.0))) == 0.0


def test_the_plugin_of_a_checkout_is_where_vllm_looks(tmp_path):
    root, folder = vllm_server.plugin_path(tmp_path)
    (found,) = importlib.metadata.distributions(name="adaptersoup", path=[folder])
    points = {point.group: point.value for point in found.entry_points if point.group.startswith("vllm.")}
    assert set(points) == {"vllm.general_plugins", "vllm.endpoint_plugins"}
    assert all((Path(root) / f"{value.partition(':')[0].replace('.', '/')}.py").is_file() for value in points.values())


def test_scoring_gives_the_nats_of_the_script(tiny_llama, monkeypatch):
    result = scoring.run(tiny_llama, rows=6, repeats=1)
    assert {row["way"] for row in result.rows} == {"blocks", "forward", "passages", "evaluate"}
    assert set(scoring.GOALS) <= set(result.figures)
    monkeypatch.setattr(scoring.Setting, "evaluate", lambda _self, rows: [1.0] * len(rows))
    with pytest.raises(Internal, match="nats by the engine"):
        scoring.run(tiny_llama, rows=2, repeats=1)


def test_a_working_set_is_loaded_again_and_again(tiny_llama, monkeypatch):
    monkeypatch.setattr(working_set, "PAIRS", 2)
    monkeypatch.setattr(working_set, "PROMPT", 4)
    monkeypatch.setattr(working_set, "TOKENS", 2)
    result = working_set.run(tiny_llama, held=2, factors=(1, 4), requests=12, repeats=1)
    loads = {row["working_set"]: row["loads_a_request"] for row in result.rows}
    assert loads["1x"] <= 2 / 24 < loads["4x"] <= 1
    assert result.figures["working_set_4x"].goal == 0.8
    assert result.figures["cold_first_token_ms"].unit == "ms"


def test_selection_in_large_pools(monkeypatch):
    monkeypatch.setattr(updating, "LARGE", 3)
    result = report.Result("selection")
    for part in selection.parts(pools=(6, 12), units=20, dimensions=40, layers=1, repeats=1).values():
        part(result)
    fits = [(row["selector"], row["adapters"]) for row in result.rows if "fit_s" in row]
    assert fits == [(kind, size) for kind in ("posterior", "cosine") for size in (6, 12)]
    assert min(row["held_out_accuracy"] for row in result.rows if "fit_s" in row) > 0.9
    assert [row["domains"] for row in result.rows if "domains" in row] == [["a000000"]] * 2
    for kind in ("posterior", "cosine"):
        for figure in (f"fit_growth_{kind}", f"add_one_{kind}_s", f"select_{kind}_ms", f"state_{kind}_mib"):
            assert result.figures[figure].value != 0
    assert result.figures["lora_svd_vs_peft"].value > 1
    monkeypatch.setattr(updating, "LARGE", 300)
    with pytest.raises(Internal, match="are a small pool"):
        selection.measure_pools(result, pools=(6, 12), units=20, dimensions=40, repeats=1)


def test_a_part_is_put_beside_others_or_is_the_first_of_a_file(tmp_path):
    out = tmp_path / "parts.json"

    def part(name: str, value: float) -> Callable[[report.Result], None]:
        def measured(result: report.Result) -> None:
            result.figures[name] = Figure(value, "s")
            result.rows.append({"part": name, "value": value})

        return measured

    for only, value in (("one", 1.0), ("two", 2.0), ("one", 3.0)):
        report.run_parts("parts", {name: part(name, value) for name in ("one", "two")}, only=[only], out=out)
    found = json.loads(out.read_text())
    assert {name: figure["value"] for name, figure in found["figures"].items()} == {"one": 3.0, "two": 2.0}
    assert sorted(row["value"] for row in found["rows"]) == [2.0, 3.0]
    assert found["figures"]["one"].keys() - {"value", "goal", "unit", "repeats"} == {"date", "commit"}
