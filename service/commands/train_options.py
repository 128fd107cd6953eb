"""What `soup train` and `soup train sweep` share: their options, and what is made of them.

Torch is imported by nothing here until a base model is asked for.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import typer
from pydantic import ValidationError

from registry.errors import Cancelled, InvalidParameter, NotFound

if TYPE_CHECKING:
    from registry.spec import AdapterConfig, BaseEntry, BaseShape

Init = Literal["near_identity", "linear", "zero_up"]
BLOCK = 512
"""Tokens in a block where nothing else is said, at most the base's context."""
RANK = 8

BaseFolder = Annotated[
    Path | None, typer.Option("--base-folder", help="Folder of the base model; or --bases and --base.")
]
Bases = Annotated[Path | None, typer.Option("--bases", help="Allowlist of base models (SOUP_BASES).")]
Base = Annotated[str | None, typer.Option("--base", help="Id of the base model in the allowlist.")]
Method = Annotated[Literal["bottleneck", "lora"], typer.Option("--method", help="Kind of adapter.")]
Structure = Annotated[
    Literal["bapna_firat", "houlsby", "pfeiffer", "parallel"] | None,
    typer.Option("--structure", help="Of a bottleneck; by default bapna_firat."),
]
Bottleneck = Annotated[int | None, typer.Option("--bottleneck", min=1, help="Width of a bottleneck; by default 64.")]
Rank = Annotated[int | None, typer.Option("--rank", min=1, help=f"Rank of a LoRA; by default {RANK}.")]
Alpha = Annotated[float | None, typer.Option("--alpha", help="Of a LoRA; by default twice the rank.")]
Targets = Annotated[
    list[str] | None,
    typer.Option(
        "--targets",
        help="Linear modules of a LoRA, separated by commas: names (q_proj), ends of paths, '*' for anything, "
        "all-linear; by default the attention's projections.",
    ),
]
InitOption = Annotated[
    Init | None,
    typer.Option("--init", help="How a bottleneck starts; by default near_identity, for parallel zero_up."),
]
InitSeed = Annotated[int, typer.Option("--init-seed", min=0, help="Only adapters that share it can be averaged.")]
Steps = Annotated[int, typer.Option("--steps", min=1, help="Updates.")]
Batch = Annotated[int, typer.Option("--batch", min=1, help="Blocks in a forward pass.")]
Accumulate = Annotated[
    int, typer.Option("--accumulate", min=1, help="Forward passes in an update: the same as a batch so much larger.")
]
Block = Annotated[int | None, typer.Option("--block", min=2, help=f"Tokens in a block; by default {BLOCK} at most.")]
Schedule = Annotated[
    Literal["linear", "cosine"], typer.Option("--schedule", help="How the learning rate falls after the warm-up.")
]
Warmup = Annotated[float, typer.Option("--warmup", help="Share of the steps over which the learning rate rises.")]
WeightDecay = Annotated[float, typer.Option("--weight-decay", help="AdamW's.")]
Dtype = Annotated[
    Literal["float32", "bfloat16"], typer.Option("--dtype", help="Of forward passes; the adapter stays float32.")
]
Evaluations = Annotated[
    int, typer.Option("--evaluations", min=1, help="How often validation text is scored; the best state is kept.")
]
Sample = Annotated[
    int, typer.Option("--sample", min=0, help="Training passages to put beside the weights; 0 for none.")
]


@dataclass(frozen=True)
class Wanted:
    """The adapter that the options describe."""

    method: Literal["bottleneck", "lora"]
    structure: Literal["bapna_firat", "houlsby", "pfeiffer", "parallel"] | None
    bottleneck: int | None
    rank: int | None
    alpha: float | None
    targets: list[str] | None
    init: Init | None

    def check(self) -> None:
        """Raises BadParameter for an option of the other method."""
        bottleneck = {"--structure": self.structure, "--bottleneck": self.bottleneck, "--init": self.init}
        lora = {"--rank": self.rank, "--alpha": self.alpha, "--targets": self.targets}
        others = bottleneck if self.method == "lora" else lora
        given = [name for name, value in others.items() if value is not None]
        if given:
            raise typer.BadParameter(f"{', '.join(given)}: not an option of --method {self.method}.")

    def config(self, shape: BaseShape) -> AdapterConfig:
        """The configuration on this base; raises InvalidParameter for a number out of its range, Incompatible."""
        from registry.adapters import paper_config
        from training.targets import lora_for

        try:
            if self.method == "bottleneck":
                return paper_config(self.structure or "bapna_firat", bottleneck=self.bottleneck or 64)
            rank = self.rank or RANK
            names = [name.strip() for group in self.targets or [] for name in group.split(",") if name.strip()]
            alpha = 2.0 * rank if self.alpha is None else self.alpha
            return lora_for(shape, rank=rank, alpha=alpha, targets=names)
        except ValidationError as error:
            found = error.errors(include_url=False)[0]
            raise InvalidParameter(f"--{found['loc'][-1]}: {found['msg']}.", param=str(found["loc"][-1])) from None

    @property
    def start(self) -> Init:
        """How it starts; of no meaning for a LoRA."""
        return self.init or ("zero_up" if self.structure == "parallel" else "near_identity")


def entry_of(base_folder: Path | None, bases: Path | None, base: str | None) -> BaseEntry:
    """The base model to train on, from a folder or the allowlist."""
    from registry.base_model import read_allowlist
    from registry.spec import BaseEntry
    from service.settings import Settings

    if base_folder is not None:
        if base is not None or bases is not None:
            raise typer.BadParameter("Give --base-folder, or --bases and --base.")
        if not base_folder.is_dir():
            raise NotFound(f"{base_folder} is not a directory: --base-folder names the folder of a base model.")
        return BaseEntry(id="local", source=str(base_folder.resolve()))
    path = bases or Settings().bases
    if path is None:
        raise typer.BadParameter("Which base model? Give --base-folder, or --bases (SOUP_BASES) and --base.")
    entries = read_allowlist(path)
    if base is None and len(entries) == 1:
        return next(iter(entries.values()))
    if base not in entries:
        raise NotFound(f"--base must be one of {', '.join(sorted(entries))} ({path}).", param="base")
    return entries[base]


def with_block(numbers: Mapping[str, Any], context: int) -> dict[str, Any]:
    """The numbers of a recipe, with a block that fits the base's context where none was given."""
    return {**numbers, "block": min(context, BLOCK) if numbers.get("block") is None else numbers["block"]}


def floats(option: str, text: str) -> list[float]:
    """Numbers separated by commas; raises BadParameter."""
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise typer.BadParameter(f"{option} takes numbers separated by commas, not {text!r}.") from None


def integers(option: str, text: str) -> list[int]:
    """Whole numbers separated by commas; raises BadParameter."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise typer.BadParameter(f"{option} takes whole numbers separated by commas, not {text!r}.") from None


@contextmanager
def stoppable() -> Iterator[Callable[[], bool]]:
    """While open, a first Ctrl-C (or a request to terminate) is only noted, and what is given says so.

    A second one ends the program as ever. Outside of the main thread nothing is noted.
    """
    asked: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def note(number: int, _frame: FrameType | None) -> None:
        asked.append(number)
        restore()

    try:
        for number in before:
            signal.signal(number, note)
        yield lambda: bool(asked)
    finally:
        restore()


@contextmanager
def saying_how_to_go_on(*, saved: bool) -> Iterator[None]:
    """Ends the sentence of a training that was stopped with what to do."""
    try:
        yield
    except Cancelled as stopped:
        how = "Run the same command again to go on." if saved else "Nothing of it is kept: --checkpoint FOLDER would."
        raise Cancelled(f"{stopped.message} {how}") from None


def needed(**options: Path | None) -> list[Path]:
    """The values; raises BadParameter for those not given, which are needed unless a verb below is called."""
    names = [f"--{name}" for name, value in options.items() if value is None]
    if names:
        raise typer.BadParameter(f"Missing {', '.join(names)}: see `soup train --help`.")
    return [value for value in options.values() if value is not None]


def refuse_before_verb(context: typer.Context) -> None:
    """Raises BadParameter for options that stand before the verb's name, where nothing would heed them."""
    given = [
        name for name in context.params if getattr(context.get_parameter_source(name), "name", "") == "COMMANDLINE"
    ]
    if given:
        verb = cast(str, context.invoked_subcommand)
        raise typer.BadParameter(f"Options of `soup train {verb}` go after '{verb}'.")
