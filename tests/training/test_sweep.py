"""`soup train sweep`: a grid from one initialisation, resumable, and what it refuses."""

from __future__ import annotations

import gzip
import json
import multiprocessing
import shutil
from pathlib import Path

import pytest

from adaptersoup.cli.app import run as soup
from adaptersoup.cli.verbs.train import interrupts
from adaptersoup.cli.verbs.train.progress import Table
from registry.formats import AdapterContents, read_directory, write_directory
from registry.names import check_part
from registry.spec import Provenance
from tests.registry.random_adapters import lora
from tests.registry.toy_registry import weights
from tests.service.scripted_server import Server, ok, refusal
from tests.training.conftest import stop_after, stoppable
from training.checkpoint import locked
from training.state import made_with
from training.sweep import CHECKPOINTS, Cell, finished_row, read_domain

pytestmark = pytest.mark.slow

LINES = [json.dumps({"text": f"The judge of court {i} held that contract {i * 7} was void."}) for i in range(60)]


@pytest.fixture
def domains(tmp_path):
    for number, name in enumerate(("law", "more_law")):
        folder = tmp_path / "texts" / name
        folder.mkdir(parents=True)
        (folder / "train.jsonl").write_text("\n".join(LINES[number : number + 40]))
        (folder / "valid.jsonl.gz").write_bytes(gzip.compress("\n".join(LINES[40:]).encode()))
    return [str(tmp_path / "texts" / name) for name in ("law", "more_law")]


@pytest.fixture
def command(domains, tiny_base_dir, tmp_path):
    def arguments(*more: str, grid: tuple[str, str] = ("1e-2,1e-3", "1,2"), of: int = 2) -> list[str]:
        return [
            "train",
            "sweep",
            *domains[:of],
            "--base-folder",
            str(tiny_base_dir),
            "--out",
            str(tmp_path / "out"),
            "--steps",
            "3",
            "--batch",
            "2",
            "--block",
            "32",
            "--bottleneck",
            "4",
            "--lr",
            grid[0],
            "--seed",
            grid[1],
            *more,
        ]

    return arguments


def contents(folder):
    return {path.name: (path / "adapter_model.safetensors").read_bytes() for path in sorted(folder.glob("[!.]*"))}


def test_a_sweep_makes_every_cell_from_one_start_and_again_only_what_is_missing(command, tmp_path, capsys):
    assert soup(command()) == 0
    said = capsys.readouterr()
    made = contents(tmp_path / "out")
    names = [
        f"{domain}-lr{rate}-seed{seed}"
        for domain in ("law", "more_law")
        for rate in ("0.01", "0.001")
        for seed in (1, 2)
    ]
    assert set(made) == set(names)
    assert [line.split()[0] for line in said.out.splitlines()] == ["ADAPTER", *names]
    ends = [line for line in said.err.splitlines() if not line.startswith(tuple(names))]
    assert [line.split(":")[0] for line in ends] == [f"{n} of 8" for n in range(1, 9)]
    folders = [read_directory(tmp_path / "out" / check_part(name, "name")) for name in names]
    assert len({folder.provenance.init_hash for folder in folders}) == 1
    assert [folder.domain for folder in folders] == ["law"] * 4 + ["more_law"] * 4
    assert [folder.provenance.training["data_seed"] for folder in folders] == [1, 2] * 4
    assert len(set(made.values())) == 8
    assert not (tmp_path / "out" / ".checkpoints").exists()
    assert all(folder.sample is not None for folder in folders)
    (tmp_path / "out" / "law-lr0.01-seed2").rename(tmp_path / "elsewhere")
    assert soup(command("--json")) == 0
    rows = json.loads(capsys.readouterr().out)["data"]
    assert [row["state"] for row in rows] == ["kept", "trained", *["kept"] * 6]
    assert contents(tmp_path / "out") == made
    assert rows[1]["path"] == str(tmp_path / "out" / "law-lr0.01-seed2")


def test_a_sweep_that_was_stopped_goes_on_to_the_same_adapters(command, tmp_path, capsys, monkeypatch):
    assert soup(command(of=1)) == 0
    whole = contents(tmp_path / "out")
    (tmp_path / "out").rename(tmp_path / "whole")
    with monkeypatch.context() as patch:
        patch.setattr(interrupts, "stoppable", stop_after(5))
        assert soup(command(of=1)) == 1
    assert "Run the same command again to go on." in capsys.readouterr().err
    assert list(contents(tmp_path / "out")) == ["law-lr0.01-seed1"]
    assert soup(command(of=1)) == 0
    assert contents(tmp_path / "out") == whole


@pytest.mark.parametrize(
    ("before", "now", "said"),
    [
        ((), ("--schedule", "cosine"), "schedule"),
        ((), ("--bottleneck", "8"), "config.bottleneck"),
        ((), ("--init-seed", "3"), "init_seed"),
        (("--sparsity", "0.5"), (), "pruning"),
        ((), ("--adamix", "2"), "consistency"),
        (("--adamix", "2"), ("--adamix", "2", "--share", "none"), "bank.share"),
    ],
)
def test_a_cell_of_another_training_is_refused_before_any_is_trained(command, tmp_path, capsys, before, now, said):
    """A pruned adapter, or the merge of a bank, is no plain one, which would have the same configuration."""
    assert soup(command(*before, grid=("1e-3", "1"), of=1)) == 0
    made = contents(tmp_path / "out")
    capsys.readouterr()
    assert soup(command(*now, grid=("1e-2,1e-3", "1"), of=1)) == 1
    assert f"of another training: {said} (" in capsys.readouterr().err
    assert contents(tmp_path / "out") == made
    assert soup(command(*before, grid=("1e-3", "1"), of=1)) == 0


@pytest.mark.parametrize(
    ("more", "grid", "code", "said"),
    [
        ((), ("1e-3,abc", "1"), 2, "separated by commas"),
        ((), ("1e-3", "1.5"), 2, "whole numbers"),
        ((), ("1e-3,0.001", "1"), 1, "law-lr0.001-seed1 is in the grid twice"),
        ((), ("1e-3,-1", "1"), 1, "learning_rate"),
        ((), ("1e-3", "-1"), 1, "data_seed"),
        (("--rank", "4"), ("1e-3", "1"), 2, "--rank: not an option of --method bottleneck"),
        (("no-such-folder",), ("1e-3", "1"), 1, "has no train.jsonl"),
    ],
)
def test_bad_grids_are_refused_in_one_sentence(command, tmp_path, capsys, more, grid, code, said):
    assert soup(command(*more, grid=grid)) == code
    assert said in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_options_before_the_verb_are_refused(command, capsys):
    assert soup(["train", "--steps", "3", *command()[1:]]) == 2
    assert "go after 'sweep'" in capsys.readouterr().err


def test_a_cell_that_diverges_ends_no_other_and_cells_at_once_come_out_as_one_after_another(command, tmp_path, capsys):
    """Two processes, a cell that diverges, one that is there, and the same bytes as in one process."""
    grid = ("1e30,1e-2,1e-3", "1")
    assert soup(command("--steps", "10", grid=grid, of=1)) == 1
    said = capsys.readouterr()
    assert [line.split()[1] for line in said.out.splitlines()[1:]] == ["diverged", "trained", "trained"]
    assert "law-lr1e+30-seed1: Training diverged at step" in said.err
    whole = contents(tmp_path / "out")
    assert list(whole) == ["law-lr0.001-seed1", "law-lr0.01-seed1"]
    shutil.rmtree(tmp_path / "out" / "law-lr0.01-seed1")
    assert soup(command("--steps", "10", "--parallel", "2", "--json", grid=grid, of=1)) == 1
    said = capsys.readouterr()
    rows = json.loads(said.out)["data"]
    assert [row["state"] for row in rows] == ["diverged", "trained", "kept"]
    assert "law-lr1e+30-seed1: Training diverged at step" in said.err
    assert contents(tmp_path / "out") == whole


@pytest.mark.long
def test_a_sweep_in_processes_that_is_stopped_goes_on_to_the_same_adapters(command, tmp_path, capsys, monkeypatch):
    again = command("--steps", "300", grid=("1e-3", "1"), of=1)
    assert soup(again) == 0
    whole = contents(tmp_path / "out")
    (tmp_path / "out").rename(tmp_path / "whole")
    saved = tmp_path / "out" / ".checkpoints" / "law-lr0.001-seed1"
    with monkeypatch.context() as patch:
        patch.setattr(interrupts, "stoppable", stoppable(saved.exists))  # a training makes it as it begins
        assert soup([*again, "--parallel", "2"]) == 1
    assert "Run the same command again to go on." in capsys.readouterr().err
    assert saved.is_dir()
    assert soup(again) == 0
    assert contents(tmp_path / "out") == whole
    assert not (tmp_path / "out" / ".checkpoints").exists()


def test_a_second_sweep_into_the_same_folder_is_refused_while_the_first_is_at_work(command, tmp_path, capsys):
    with locked(tmp_path / "out" / CHECKPOINTS, "taken"):
        for _ in range(2):  # nor does the one that is refused let the next one in
            assert soup(command()) == 1
            said = capsys.readouterr().err
            assert f"Another sweep is at work in {tmp_path / 'out'}: wait for it, or choose another folder." in said
    assert not (tmp_path / "out" / CHECKPOINTS).exists()


def test_cells_that_were_made_on_other_threads_are_said(command, tmp_path, capsys):
    assert soup(command(grid=("1e-2", "1"), of=1)) == 0
    assert "last bits" not in capsys.readouterr().err
    (manifest,) = (tmp_path / "out" / "law-lr0.01-seed1").glob("*.json")
    assert '"threads": 1' in manifest.read_text()
    manifest.write_text(manifest.read_text().replace('"threads": 1', '"threads": 2'))
    assert soup(command(grid=("1e-2,1e-3", "1"), of=1)) == 0
    notes = [line for line in capsys.readouterr().err.splitlines() if "last bits" in line]
    differ = "Its last bits may differ from those of cells that are trained here: threads (2 there, 1 here)."
    assert notes == [f"law-lr0.01-seed1: {differ}"]


@pytest.mark.parametrize("said", [{"torch": "1", "threads": 9}, 5, [5], ["threads"], "threads", None])
def test_a_folder_that_says_otherwise_what_it_was_made_with_is_a_row_without_a_note(domains, tmp_path, said):
    contents = AdapterContents(
        config=lora(),
        weights=weights(0, lora()),
        base_model="tiny",
        provenance=Provenance(training={"made_with": said}),
    )
    write_directory(tmp_path / "one", contents)
    cell = Cell(read_domain(Path(domains[0])), 1e-3, 1)
    row = finished_row(cell, "kept", read_directory(tmp_path / "one"), made_with(9))
    assert (row.state, row.note) == ("kept", None)


def test_a_cell_whose_process_is_killed_again_and_again_is_left_for_the_next_time(command, capsys, monkeypatch):
    again = command(grid=("1e-3", "1"), of=1)
    killed = set()

    def kill():
        for child in multiprocessing.active_children():
            killed.add(child.pid)
            child.kill()
        return False

    with monkeypatch.context() as patch:
        patch.setattr(interrupts, "stoppable", stoppable(kill))
        assert soup([*again, "--parallel", "2"]) == 1
    said = capsys.readouterr()
    assert [line.split()[1] for line in said.out.splitlines()[1:]] == ["failed"]
    assert "law-lr0.001-seed1: The process that ran it was killed, or crashed, 3 times." in said.err
    assert len(killed) >= 3
    assert soup(again) == 0


def test_what_is_wrong_with_all_cells_ends_them_all(command, tmp_path, capsys):
    assert soup(command("--block", "999")) == 1
    assert "999" in capsys.readouterr().err
    assert contents(tmp_path / "out") == {}


def test_what_a_grid_made_is_pushed_in_one_go_the_best_of_a_domain_last(command, tmp_path, capsys):
    """Over a scripted server, which refuses one; a bank goes there and its merge is cooked there."""
    server = Server()
    pushed, cooked = [], []

    def push(request):
        manifest = json.loads(request.content)
        pushed.append((manifest["name"], manifest["config"]["method"], len(manifest["sample"]["texts"])))
        if manifest["name"].startswith("team/law-lr0.0001"):
            return refusal(403, "forbidden", "This key may not write there.")
        return ok({"ref": manifest["name"] + "@1"})

    def cook(request):
        cooked.append(json.loads(request.content))
        return ok({"object": "soup", "model": cooked[-1]["name"] + "@1"})

    server.on("POST /v1/adapters", push)
    server.on("POST /v1/soups", cook)
    again = command("--adamix", "2", "--push", "team", "--json", grid=("5e-2,1e-4,1e-2", "1"), of=1)
    assert soup(again, connect=lambda url, key: server.client()) == 1
    said = capsys.readouterr()
    rows = json.loads(said.out)["data"]
    assert [row["ref"] for row in rows] == ["team/law-lr0.05-seed1@1", None, "team/law-lr0.01-seed1@1"]
    assert "This key may not write there." in said.err
    lowest = {row["name"]: min(loss for _, loss in row["training"]["valid_history"]) for row in rows}
    worst_first = sorted(lowest, key=lowest.__getitem__, reverse=True)
    assert worst_first[0] == "law-lr0.0001-seed1"
    assert pushed == [(f"team/{name}-bank", "adamix", 40) for name in worst_first]
    assert [one["recipe"]["ingredients"] for one in cooked] == [
        [{"ref": f"team/{name}-bank@1", "weight": 1.0}] for name in worst_first[1:]
    ]
    assert {one["mixing"]["method"] for one in cooked} == {"merge"}
    assert soup(command("--push", "No Namespace")) == 1
    assert "Namespace" in capsys.readouterr().err


def test_a_table_of_progress_has_a_line_a_cell():
    from rich.console import Console

    table = Table(["law-lr0.001-seed1", "[b]strange[/b]"])
    table.at("law-lr0.001-seed1", 3, 10, "loss 2.5")
    table.ended("[b]strange[/b]", "kept")
    console = Console(width=80, color_system=None)
    with console.capture() as captured:
        console.print(table)
    lines = [line.split() for line in captured.get().splitlines()]
    assert lines[1:] == [["law-lr0.001-seed1", "training", "3/10", "loss", "2.5"], ["[b]strange[/b]", "kept"]]


def test_what_is_in_the_place_of_a_cells_bank_is_not_written_over(command, tmp_path, capsys):
    """Found before anything is trained."""
    grid = ("1e-3", "1")
    assert soup(command(grid=grid)) == 0
    bank = tmp_path / "out" / "more_law-lr0.001-seed1-bank"
    for name in ("law", "more_law"):
        (tmp_path / "out" / f"{name}-lr0.001-seed1").rename(tmp_path / name)
    (tmp_path / "more_law").rename(bank)
    before = contents(tmp_path / "out")
    capsys.readouterr()
    assert soup(command("--adamix", "2", grid=grid)) == 1
    assert f"{bank} exists and is not empty: choose another directory, or remove it." in capsys.readouterr().err
    assert contents(tmp_path / "out") == before


@pytest.mark.parametrize(("part", "least"), [("train.jsonl", 20), ("valid.jsonl.gz", 5)])
def test_a_domain_with_too_little_is_named_before_anything_is_trained(domains, command, tmp_path, capsys, part, least):
    path = Path(domains[1]) / part
    path.write_text("\n".join(LINES[: least - 1]))
    assert soup(command()) == 1
    assert f"{path} holds {least - 1} items that are not empty, and at least {least} are needed." in (
        capsys.readouterr().err
    )
    assert not (tmp_path / "out").exists()


def test_data_that_are_wrong_later_are_those_of_a_domain(domains, command, capsys):
    (Path(domains[1]) / "train.jsonl").write_text('{"text": "a"}\n' * 20)
    assert soup(command("--block", "64", grid=("1e-2", "1"))) == 1
    said = capsys.readouterr().err
    assert f"{domains[1]}: The training data has" in said, said
