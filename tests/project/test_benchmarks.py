"""The benchmarks measure what they say: small runs of each, and the form of every result that is committed."""

from __future__ import annotations

import copy
import importlib.metadata
import json
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks import (
    acceptance,
    cold_start,
    decoding,
    mixtures,
    over_http,
    registry,
    report,
    scoring,
    selection,
    subjects,
    training,
    vllm,
    working_set,
    writing,
)
from benchmarks.faults import headers, kills, outages, server, tenants, updates
from benchmarks.peers import vllm_server
from benchmarks.peers.files import write_peft
from benchmarks.shelf import lists, pools, pushes
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


def test_calls_take_turns_after_a_warm_up():
    calls: list[str] = []
    found = report.interleaved({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, repeats=2)
    assert "".join(calls) == "ababab"
    assert {name: len(times) for name, times in found.items()} == {"a": 2, "b": 2}


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


@pytest.mark.long
def test_a_servers_start_is_measured_until_it_is_ready(tiny_base_dir, tmp_path):
    assert cold_start.server_start(tiny_base_dir) > 0.1
    with pytest.raises(OSError, match="refused"):
        cold_start.server_start(tmp_path / "nothing")


@pytest.mark.long
def test_a_killed_server_has_what_it_acknowledged_and_what_it_lost_is_counted(tmp_path, monkeypatch):
    outcome = kills.run_series(kills.Pushes, tmp_path, None, kills=1)
    assert (outcome.kills, outcome.survived, outcome.failures) == (1, 1, [])
    assert outcome.acknowledged > 0
    with server.killable(tmp_path, None) as again, again.client() as client:
        pushed = [client.adapter(str(one["ref"])) for one in client.adapters()]
        [blob] = (tmp_path / "data" / "blobs").rglob(pushed[0]["weights_blob"].removeprefix("sha256:"))
        blob.write_bytes(bytes(pushed[0]["size_bytes"]))
        assert len(kills._missing(kills.Pushes(), client, [{**one, "job": None} for one in pushed])) == 1
        assert updates.lost_updates(again, writers=2, each=3) == 0
        client.delete_adapter(updates.NAME)
        assert outages._run(outages.FAULTS[0], outages.Place(again, None, None), 7).failures == []
        monkeypatch.setattr(tenants, "WARM_SECONDS", 0.5)
        with (
            pytest.raises(Internal, match=r"of perplexity was refused: \{'401'"),
            tenants.flooded(again.url, "sk-soup-none", "perplexity"),
        ):
            time.sleep(1)


@pytest.mark.long
def test_a_catalogue_is_listed_and_a_server_is_pushed_to_by_many(tmp_path, monkeypatch):
    monkeypatch.setattr(lists, "WARM", 1)
    with server.killable(tmp_path, None) as pushed_to:
        lists.stock(pushed_to, 400)
        found = {(one.kind, one.sees): one for one in lists.timed(pushed_to, 400, requests=20)}
        assert pushes.rate(pushed_to, clients=2, each=2, seed=50) > 0
        backlog = pushes.backlog(pushed_to, pushes=3)
        with pushed_to.client() as client:
            assert sum(1 for _ in client.adapters(namespace="team3")) == 2
            assert sum(1 for _ in client.adapters(namespace="row")) == pushes.SEEDED + 3
    everything = {kind: one.found for (kind, sees), one in found.items() if sees == "everything"}
    assert everything["nothing"] == 0
    assert everything["list"] == 21
    assert everything["filter"] > 10, "most of what is asked for is there"
    assert everything["search"] > 10
    assert everything["resolve"] == 21
    assert found["list", "3 namespaces"].row("sqlite")["p95_ms"] > 0
    assert backlog.to_do <= 2
    assert 1 <= backlog.to_do + backlog.done <= 3


@pytest.mark.long
def test_selectors_are_fitted_over_stored_vectors_in_a_process(monkeypatch):
    monkeypatch.setattr(pools, "FEW_ADAPTERS", 3)
    result = report.Result("registry")
    registry.measure_fits(result, adapters=5, units=20, dimensions=16, repeats=2)
    assert [row["selector"][:4] for row in result.rows] == ["post", "cosi"]
    assert all(0 <= row["beyond"] < 500 and row["before"] > 20 for row in result.rows)
    assert len(result.figures["add_one_s"].repeats) == 2
    registry.measure_route(result, adapters=5, units=20, dimensions=16, requests=3)
    assert result.figures["route_ms_p95"].value > 0
    registry.measure_nearest(result, adapters=8, dimensions=16, requests=3)
    assert result.rows[-1]["median_ms"] > 0


def test_headers_are_read_or_refused_and_all_else_is_a_crash(monkeypatch):
    found = headers.run_headers(400)
    assert found.read > 0
    assert found.refused > 0
    assert (found.read + found.refused, found.crashes) == (400, [])

    def broken(_data, **_limits):
        raise KeyError("shape")

    monkeypatch.setattr(headers, "parse", broken)
    assert len(headers.run_headers(3).crashes) == 3


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


def test_training_speed_is_told_as_ratios_within_a_repeat():
    seconds = {"full": 1.5, "adapter": 1.0, "lora": 1.1, "peft_lora": 1.2, "adamix_pass": 1.05, "adamix_step": 2.2}
    slower = iter([1.0, 3.0, 1.0])  # the machine is three times as slow in the second repeat
    factor = 1.0

    def take(variant: str) -> results.Row:
        nonlocal factor
        factor = next(slower) if variant == "full" else factor
        step = factor * seconds.get(variant, 1.0)
        return {"variant": variant, "step_s": step, "tokens_per_s": 1 / step, "parameters_trained": 1,
                "peak_memory_mib": 5.0}  # fmt: skip

    result = training.run(take, repeats=2, dtype="float32")
    values = {name: figure.value for name, figure in result.figures.items() if not name.startswith(("peak", "tokens"))}
    assert values == pytest.approx({
        "adapter_vs_full": 1.5, "adapter_vs_peft_lora": 1.2, "lora_vs_peft_lora": 1.2 / 1.1, "adamix_overhead": 0.05,
        "adamix_step_overhead": 0.1, "mask_overhead": 0,
    })  # fmt: skip
    assert [row["variant"] for row in result.rows] == list(training.VARIANTS)
    deep = training.run(take, repeats=1, dtype="float32", variants=["full", "adapter"], name="training_deep").figures
    assert (deep["adapter_vs_full"].goal, result.figures["adapter_vs_full"].goal) == (1.3, 1.2)
    assert not {"adapter_vs_peft_lora", "adamix_overhead", "peak_memory_masked_mib"} & set(deep)


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


def test_loras_for_peers_hold_the_same(tmp_path, tiny_llama):
    from peft import PeftModel

    (lora,) = writing.drawn(tiny_llama, subjects.lora_of(tiny_llama.shape), 1)
    folder = write_peft(tmp_path / "lora", tiny_llama, lora)
    model = PeftModel.from_pretrained(copy.deepcopy(tiny_llama.model), folder)
    held = {name.replace(".default", ""): tensor for name, tensor in model.state_dict().items()}
    assert all(torch.equal(held[name], tensor) for name, tensor in lora.load().items())


def test_bottlenecks_in_vllm_need_its_environment(tmp_path, tiny_llama):
    folder = Path(tiny_llama.entry.source)
    result = report.Result("vllm")
    vllm.measure_answers(result, folder, tmp_path)
    vllm.measure_speed(result, folder, dtype="float32", repeats=1, environments=tmp_path)
    vllm.measure_aliases(result, folder, moves=1, environments=tmp_path)
    assert [row["part"] for row in result.rows] == ["answers", "answers", "speed", "speed", "speed", "aliases"]
    assert all("make bench-peers" in row["missing"] for row in result.rows)
    assert result.figures == {}


def test_log_probabilities_are_compared_up_to_the_first_other_token():
    one = vllm.Written((1, 2, 3), (-1.0, -2.0, -3.0))
    assert vllm.difference(one, vllm.Written((1, 2, 4), (-1.5, -2.0, -9.0))) == 0.5
    assert vllm.difference(one, vllm.Written((9, 2, 3), (-9.0, -9.0, -9.0))) == 0.0


def test_waits_for_vllm_end():
    with pytest.raises(TimeoutError, match="within 0 s"):
        vllm_server.wait_until(lambda: False, 0)
    with subprocess.Popen([sys.executable, "-c", "exit(3)"]) as process:
        process.wait()
    with pytest.raises(OSError, match="exit code 3"):
        vllm_server.answers(None, process)


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


@pytest.mark.long
def test_http_gives_what_the_engine_gives(monkeypatch):
    monkeypatch.setattr(over_http, "TOKENS", 4)
    result = over_http.run(subjects.random_gpt2(**TINY), streams=3, clients=3, repeats=1)
    assert {row["way"] for row in result.rows} == {
        "streams_over_http", "streams_by_engine", "streams_at_once", "scores_over_http", "scores_by_engine",
    }  # fmt: skip
    assert {
        "http_overhead_streams", "http_overhead_scoring", "one_by_one_vs_at_once", "start_s", "first_token_ms"
    } == set(result.figures) - {"first_token_after_start_ms"}  # fmt: skip


@pytest.mark.long
def test_mixtures_are_measured_beside_adapters(monkeypatch):
    monkeypatch.setattr(mixtures, "TOKENS", 2)
    result = mixtures.run(subjects.random_gpt2(**TINY), repeats=1)
    assert set(result.figures) == {"mixture_cold", "mixture_warm", "mixtures_at_once"}
    assert len(result.rows) == 6


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
