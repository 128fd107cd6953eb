"""A disk that takes no files is the machine's problem, and not that of the piece that found it so."""

from __future__ import annotations

import errno
import json
import os
import platform
import re
import tempfile
from pathlib import Path

import pytest

from registry.errors import Unavailable
from registry.pieces import MachineProblem, Watch, own_disk
from registry.progress import silent
from registry.spec import BaseEntry
from service.engine.score_pieces import engine_of
from training.cell_pieces import CellHere, TextsSent, sent, train_sent
from training.spec import TrainingSpec
from training.sweep import Grid, cells_of, read_domain


def error(number: int, *named: str) -> OSError:
    return OSError(number, os.strerror(number), *named)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO])
def test_a_disk_that_is_full_or_fails_is_the_machines_problem_and_the_path_is_said(number: int) -> None:
    node = re.escape(platform.node())
    said = rf"^On {node} the files of a piece of work cannot be read or written: {os.strerror(number)} \(/tmp/x\)\.$"
    with pytest.raises(MachineProblem, match=said), own_disk():
        raise error(number, "/tmp/x")
    with pytest.raises(MachineProblem, match=rf"^On {node}: Nothing can be saved in /tmp/x\.$") as raised, own_disk():
        raise Unavailable("Nothing can be saved in /tmp/x.", param="checkpoint") from error(number)
    assert raised.value.problem.param == "checkpoint"


@pytest.mark.parametrize("number", [errno.ECONNRESET, errno.ETIMEDOUT, errno.ENOENT, errno.EACCES])
def test_what_is_not_of_the_disk_is_raised_as_it_is(number: int) -> None:
    other = error(number)
    with pytest.raises(type(other)) as raised, own_disk():
        raise other
    assert raised.value is other
    with pytest.raises(Unavailable, match=r"^Nobody answers\.$"), own_disk():
        raise Unavailable("Nobody answers.") from other
    with pytest.raises(Unavailable, match=r"^Nobody answers\.$"), own_disk():
        raise Unavailable("Nobody answers.")


def test_a_base_model_that_is_broken_is_said_to_be_and_no_disk_is_blamed(tmp_path: Path) -> None:
    for name in ("config.json", "tokenizer.json"):
        (tmp_path / name).write_text("{")
    entry = BaseEntry(id="base", source=str(tmp_path))
    with pytest.raises(MachineProblem, match=f"^On {re.escape(platform.node())}: Base model 'base'") as raised:
        engine_of(entry, "sha256:" + "0" * 64, 1)
    assert "piece of work" not in str(raised.value)


def test_a_cell_that_finds_no_folder_to_train_in_blames_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for part in ("train", "valid"):
        lines = [json.dumps({"text": f"Court {number} held that contract {part} was void."}) for number in range(20)]
        (tmp_path / f"{part}.jsonl").write_text("\n".join(lines))
    domain = read_domain(tmp_path)
    (cell,) = cells_of([domain], [1e-3], [1])
    entry = BaseEntry(id="base", source=str(tmp_path))
    here = CellHere(entry, "sha256:" + "0" * 64, 1, Grid([cell], TrainingSpec(), tmp_path / "out").run_of(cell))
    texts = TextsSent(domain.train.read_bytes(), domain.valid.read_bytes())
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    with pytest.raises(
        MachineProblem, match=f"cannot be read or written: No such file or directory .{tmp_path}/gone/soup-cell-"
    ):
        train_sent(sent(here, Path.read_bytes), Watch(silent, lambda: False, texts))
