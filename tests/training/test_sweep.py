"""`soup train sweep`: a grid from one initialisation, resumable, and what it refuses."""

from __future__ import annotations

import gzip
import json

import pytest

from registry.folder import read_folder
from registry.names import check_part
from service.cli import run as soup
from service.commands import train_options

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
    def arguments(*more: str, grid: tuple[str, str] = ("1e-2,1e-3", "1,2")) -> list[str]:
        return ["train", "sweep", *domains, "--base-folder", str(tiny_base_dir), "--out", str(tmp_path / "out"),
                "--steps", "3", "--batch", "2", "--block", "32", "--bottleneck", "4", "--lr", grid[0], "--seed",
                grid[1], *more]  # fmt: skip

    return arguments


def contents(folder):
    return {path.name: (path / "adapter_model.safetensors").read_bytes() for path in sorted(folder.glob("[!.]*"))}


def test_a_sweep_makes_every_cell_from_one_start_ready_to_push(command, tmp_path, capsys):
    assert soup(command()) == 0
    said = capsys.readouterr()
    made = contents(tmp_path / "out")
    names = [f"{domain}-lr{rate}-seed{seed}" for domain in ("law", "more_law") for rate in ("0.01", "0.001")
             for seed in (1, 2)]  # fmt: skip
    assert set(made) == set(names)
    assert [line.split()[0] for line in said.out.splitlines()] == ["ADAPTER", *names]
    assert [line.split(":")[0] for line in said.err.splitlines()] == [f"{n} of 8" for n in range(1, 9)]
    folders = [read_folder(tmp_path / "out" / check_part(name, "name")) for name in names]
    assert len({folder.provenance.init_hash for folder in folders}) == 1
    assert [folder.domain for folder in folders] == ["law"] * 4 + ["more_law"] * 4
    assert [folder.provenance.training["data_seed"] for folder in folders] == [1, 2] * 4
    assert len(set(made.values())) == 8
    assert not (tmp_path / "out" / ".checkpoints").exists()
    assert all(folder.sample is not None for folder in folders)


def test_the_same_sweep_again_trains_only_what_is_missing(command, tmp_path, capsys):
    assert soup(command()) == 0
    made = contents(tmp_path / "out")
    (tmp_path / "out" / "law-lr0.01-seed2").rename(tmp_path / "elsewhere")
    capsys.readouterr()
    assert soup(command("--json")) == 0
    rows = json.loads(capsys.readouterr().out)["data"]
    assert [row["state"] for row in rows] == ["kept", "trained", *["kept"] * 6]
    assert contents(tmp_path / "out") == made
    assert rows[1]["path"] == str(tmp_path / "out" / "law-lr0.01-seed2")


def test_a_sweep_that_was_stopped_goes_on_to_the_same_adapters(command, tmp_path, capsys, monkeypatch):
    assert soup(command()) == 0
    whole = contents(tmp_path / "out")
    (tmp_path / "out").rename(tmp_path / "whole")
    with monkeypatch.context() as patch:
        patch.setattr(train_options, "stoppable", stop_after(5))
        assert soup(command()) == 1
    assert "Run the same command again to go on." in capsys.readouterr().err
    assert list(contents(tmp_path / "out")) == ["law-lr0.01-seed1"]
    assert soup(command()) == 0
    assert contents(tmp_path / "out") == whole


def stop_after(steps):
    """In the place of `stoppable`: asked so many times, it stops."""
    from contextlib import contextmanager

    @contextmanager
    def stoppable():
        asked = []
        yield lambda: asked.append(1) or len(asked) > steps

    return stoppable


def test_a_cell_that_diverges_does_not_end_the_others(command, tmp_path, capsys):
    assert soup(command("--steps", "60", grid=("1e30,1e-3", "1"))) == 1
    said = capsys.readouterr()
    assert set(contents(tmp_path / "out")) == {"law-lr0.001-seed1", "more_law-lr0.001-seed1"}
    assert [line.split()[1] for line in said.out.splitlines()[1:]] == ["diverged", "trained"] * 2
    assert "law-lr1e+30-seed1: Training diverged at step" in said.err


def test_cells_of_another_training_are_refused_before_any_is_trained(command, tmp_path, capsys):
    assert soup(command(grid=("1e-3", "2"))) == 0
    made = contents(tmp_path / "out")
    capsys.readouterr()
    for more, said in ((("--schedule", "cosine"), "schedule"), (("--bottleneck", "8"), "config.bottleneck"),
                       (("--init-seed", "3"), "init_seed")):  # fmt: skip
        assert soup(command(*more)) == 1
        assert said in capsys.readouterr().err
        assert contents(tmp_path / "out") == made


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
