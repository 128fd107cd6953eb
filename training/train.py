"""One training from files to directories: what is to be done as one value, and doing it.

Called by `soup train`, by each cell of a grid, and by the process that trains for a server. What is made is a
directory to push; of a bank of experts two, the bank beside its merge.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import Field

from registry.errors import Conflict, SoupError
from registry.formats import AdapterDirectory, check_place, read_directory
from registry.spec import Frozen
from training.spec import BANK, SAMPLE, SAVE_SECONDS, VALID_SHARE, FusionRequest, TrainingSpec

if TYPE_CHECKING:
    from registry.base_model import BaseText, LoadedBase
    from training.build import Data, Member
    from training.loop import Progress
    from training.trainer import Trained


class Work(Frozen):
    """A training: what, on which files, and the places for what comes of it; paths are those of this machine.

    Without `valid` a share of the items of `train` is held out. `called` is how messages name the two files. Members
    of a fusion are directories that the spec names, or those of `members` in their stead.
    """

    spec: TrainingSpec
    train: Path
    valid: Path | None = None
    valid_share: float = Field(default=VALID_SHARE, gt=0, lt=1)
    called: tuple[str, str] | None = None
    members: tuple[Path, ...] = ()
    out: Path
    replace: bool = False
    domain: str
    base_id: str | None = None
    sample: int = Field(default=SAMPLE, ge=0)
    sample_seed: int = 0
    checkpoint: Path | None = None
    every_steps: int | None = None
    every_seconds: float | None = SAVE_SECONDS

    @property
    def bank(self) -> Path:
        """Where the bank of experts is written, if there is one."""
        return self.out.with_name(self.out.name + BANK)


def read_data(work: Work) -> Data:
    """The items to train and to validate on; raises NotFound or InvalidParameter with the line that is wrong."""
    from training.build import Data, held_out, read_items

    train, valid = work.called or (None, None)
    items = read_items(work.spec, work.train, where=train)
    if work.valid is None:
        return held_out(items, work.valid_share)
    return Data(items, read_items(work.spec, work.valid, where=valid))


def do(
    work: Work,
    base: LoadedBase,
    *,
    data: Data | None = None,
    progress: Progress | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> Trained:
    """Train, and write what comes of it; `data` are the files' where the caller has read them already.

    Gives what `out` holds. The checkpoint is removed when that is written. Raises as `training.build.make`, and
    Conflict where `out` is there, or as `check_bank` does.
    """
    from training import build as making
    from training.checkpoint import Saving, discard
    from training.methods.adamix import merged
    from training.trainer import write_trained

    data = read_data(work) if data is None else data
    check_bank(work, base, data)
    trained = making.make(
        work.spec, base, data, members=members_of(work, base), progress=progress, should_stop=should_stop,
        saving=None if work.checkpoint is None else Saving(work.checkpoint, work.every_steps, work.every_seconds),
    )  # fmt: skip
    passages = making.passages(work.spec, data.train, work.sample, seed=work.sample_seed)
    write = partial(write_trained, base=base, domain=work.domain, base_id=work.base_id)
    if trained.config.merged is not None:
        check_bank(work, base, data)  # again: a training takes its time
        write(work.bank, trained, passages=passages, replace=True)
        trained = merged(trained)
    write(work.out, trained, passages=passages, replace=work.replace)
    if work.checkpoint is not None:
        discard(work.checkpoint)
    return trained


def check_bank(work: Work, base: BaseText, data: Data) -> None:
    """Raises Conflict where the place of the bank holds what this training would not write there, unless `replace`.

    A bank of this very training is one that was written before a crash, and its merge was not: `out` decides.
    """
    from training.build import made_otherwise

    if work.spec.adamix is None or work.replace:
        return
    folder = bank_there(work)
    if folder is None:
        return
    found = made_otherwise(folder, work.spec, base, data, members=members_of(work, base), of_bank=True)
    if found:
        raise Conflict(
            f"{work.bank} is there, and of another training: {found[0]}. Remove it, or choose another place.",
            param="out",
            problems=[f"It differs in {one}." for one in found],
        )


def bank_there(work: Work, *, how: str = "remove it") -> AdapterDirectory | None:
    """The bank of experts that is in the place of this training's, if any; raises Conflict for what is no bank.

    `how` says what else can be done than choose another place.
    """
    try:
        check_place(work.bank, replace=False, how=how)
    except Conflict:
        with suppress(SoupError):
            folder = read_directory(work.bank)
            if folder.config.merged is not None:
                return folder
        raise
    return None


def members_of(work: Work, base: BaseText) -> list[Member]:
    """The adapters that a fusion holds."""
    from training.build import read_member

    named = work.spec.adapter.members if isinstance(work.spec.adapter, FusionRequest) else ()
    return [read_member(path, base.shape) for path in work.members or map(Path, named)]
