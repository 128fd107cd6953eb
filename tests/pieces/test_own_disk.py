"""A disk that takes no files is the machine's problem, and not that of the piece that found it so."""

from __future__ import annotations

import errno
import json
import os
import tempfile
from pathlib import Path

import pytest

from registry.errors import Unavailable
from registry.pieces import MachineProblem, Watch, own_disk
from registry.progress import silent
from registry.spec import BaseEntry
from training.cell_pieces import CellHere, TextsSent, sent, train_sent
from training.spec import TrainingSpec
from training.sweep import Grid, cells_of, read_domain

FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_what_the_disk_refuses_is_the_machines_also_where_a_training_says_that_it_cannot_be_saved() -> None:
    with pytest.raises(MachineProblem, match="cannot be written: No space left on device"), own_disk():
        raise FULL
    with pytest.raises(MachineProblem, match="cannot be written: No space left on device"), own_disk():
        raise Unavailable("Nothing can be saved in /tmp/x.") from FULL


def test_what_is_not_of_the_disk_is_raised_as_it_is() -> None:
    with pytest.raises(Unavailable, match=r"^Nobody answers\.$"), own_disk():
        raise Unavailable("Nobody answers.")


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
    with pytest.raises(MachineProblem, match="cannot be written: No such file or directory"):
        train_sent(sent(here, Path.read_bytes), Watch(silent, lambda: False, texts))
