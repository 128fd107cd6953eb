"""The verb `soup train`: trains an adapter on texts of a domain, and writes it as a directory to push.

It needs no server. Torch is imported when training begins, not for the help.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, cast

import typer
from pydantic import ValidationError

from adaptersoup.cli.base_model_flags import BaseModelOptions
from adaptersoup.cli.commands import command
from adaptersoup.cli.flags import ParsedFlags, usage_error
from adaptersoup.cli.output import answer
from adaptersoup.cli.plot_flag import PlotOption, save_plot
from adaptersoup.cli.verbs.train import interrupts
from adaptersoup.cli.verbs.train.progress import training_progress
from adaptersoup.cli.verbs.train.record import print_record
from adaptersoup.cli.verbs.train.training_flags import TRAINING, SampleSize, spec_of
from registry.errors import InvalidParameter
from registry.formats import check_place, new_directory_beside
from training.request import TrainingRun
from training.spec import SAMPLE, SAVE_SECONDS

if TYPE_CHECKING:
    from registry.spec import BaseEntry
    from training.trainer import Trained


@dataclass(frozen=True, kw_only=True)
class Material:
    """The options for data, output and base model; the three paths are required, unless a subcommand is called."""

    texts: Annotated[
        Path | None, typer.Option("--texts", "--data", help='Training data: .jsonl(.gz) of {"text"}, or of the task.')
    ] = None
    valid: Annotated[Path | None, typer.Option(help="Validation data of the domain; the best state on it is kept.")] = (
        None
    )
    out: Annotated[Path | None, typer.Option(help="Adapter directory to write.")] = None
    base: BaseModelOptions
    domain: Annotated[str | None, typer.Option(help="Domain label; by default the name of the folder.")] = None

    def paths(self) -> tuple[Path, Path, Path]:
        """The training texts, validation texts and output directory; raises a usage error for missing ones."""
        missing = [f"--{name}" for name in ("texts", "valid", "out") if getattr(self, name) is None]
        if self.texts is None or self.valid is None or self.out is None:
            raise typer.BadParameter(f"Missing {', '.join(missing)}: see `soup train --help`.")
        return self.texts, self.valid, self.out


@dataclass(frozen=True, kw_only=True)
class CheckpointFlags:
    """The options for the sample beside the weights and for checkpoints."""

    SECTION: ClassVar[str] = "Sample and checkpoints"
    sample: SampleSize = SAMPLE
    checkpoint: Annotated[
        Path | None, typer.Option(help="Folder to save the state in; resumes from a saved state.")
    ] = None
    checkpoint_seconds: Annotated[
        float | None, typer.Option(min=0, help=f"Seconds between checkpoints; by default {SAVE_SECONDS:g}.")
    ] = None
    checkpoint_steps: Annotated[int | None, typer.Option(min=1, help="Also save after this number of steps.")] = None


@command
def train(
    context: typer.Context,
    material: Material,
    flags: Annotated[ParsedFlags, TRAINING],
    checkpoints: CheckpointFlags,
    as_json: Annotated[bool, typer.Option("--json", help="Print directory and record as JSON.")] = False,
    replace: Annotated[bool, typer.Option("--replace", help="Overwrite an existing directory.")] = False,
    plot: PlotOption = None,
) -> None:
    """Train an adapter on texts of a domain.

    Prints the directory, for `soup push`; that of a LoRA is PEFT's. Adapters can be averaged if they have the same base
    model, structure and --init-seed, because they start from the same tensors.

    Data are lines of {"text"}; `soup evaluate --help` lists the fields of other tasks. With --adamix, OUT-bank is the
    bank of experts, and OUT is its merge.

    With --checkpoint, the same command resumes a training that was stopped or killed, and makes the same adapter. It
    refuses a checkpoint of another training, and removes the checkpoint at the end.

    Progress is a bar on a terminal, elsewhere a line per evaluation on stderr. --plot draws the losses.

    \b
    Examples:
      soup train --base-folder models/gpt2 --texts law.jsonl --valid law-valid.jsonl --out adapters/law
      soup train --bases bases.toml --base small --texts a.jsonl.gz --valid b.jsonl.gz --out adapters/a --steps 500
      soup train --bases bases.toml --texts a.jsonl --valid b.jsonl --out lora/a --method lora --rank 16 --lr 3e-4
      soup train --bases bases.toml --texts a.jsonl --valid b.jsonl --out sparse/a --widen 2 --score snip
      soup train --base-folder bert --base-kind encoder --task classification --data a.jsonl --valid b.jsonl --out a
      soup train sweep texts/law texts/medicine --bases bases.toml --lr 1e-3,1e-4 --seed 1,2,3 --out adapters
      soup train submit --texts law.jsonl --name team/law --base small --steps 500
      soup push adapters/law --name team/law --wait
    """
    if context.invoked_subcommand is not None:
        _refuse_before_verb(context)
        return
    run = _run(material, flags, checkpoints, replace=replace)
    _check_output(run)
    trained = _train(material.base.entry(), run)
    print_record(trained)
    value = {"object": "folder", "path": str(run.out), **trained.provenance.model_dump(mode="json")}
    answer(value, str(run.out), json=as_json)
    if plot is not None:
        from plots.results import training_plot

        save_plot(plot, lambda: training_plot(f"Training on {run.domain}", trained.record))


def _run(material: Material, flags: ParsedFlags, checkpoints: CheckpointFlags, *, replace: bool) -> TrainingRun:
    """The training of the flags; raises a usage error or InvalidParameter for contradictions."""
    texts, valid, out = material.paths()
    seconds, steps = checkpoints.checkpoint_seconds, checkpoints.checkpoint_steps
    if checkpoints.checkpoint is None and (seconds is not None or steps is not None):
        raise typer.BadParameter(
            "--checkpoint-seconds and --checkpoint-steps need --checkpoint, the folder to save in."
        )
    if valid.resolve() == texts.resolve():
        raise InvalidParameter(
            f"--texts and --valid are the same file, {texts}: validate on other text.", param="valid"
        )
    spec = spec_of(flags)
    try:
        return TrainingRun(
            spec=spec,
            train=texts,
            valid=valid,
            out=out,
            domain=material.domain or out.resolve().name,
            base_id=material.base.base,
            sample=checkpoints.sample,
            sample_seed=spec.recipe.data_seed,
            replace=replace,
            checkpoint=checkpoints.checkpoint,
            every_steps=steps,
            every_seconds=SAVE_SECONDS if seconds is None else seconds,
        )
    except ValidationError as error:
        raise usage_error(error, {"domain": "--domain"}) from None


def _refuse_before_verb(context: typer.Context) -> None:
    """Raise BadParameter for options before a subcommand's name, which would have no effect."""
    flags = [
        name for name in context.params if getattr(context.get_parameter_source(name), "name", "") == "COMMANDLINE"
    ]
    if flags:
        verb = cast(str, context.invoked_subcommand)
        raise typer.BadParameter(f"Options of `soup train {verb}` go after '{verb}'.")


def _check_output(run: TrainingRun) -> None:
    """Raise Conflict or OSError if the output cannot be written, whose parents are made.

    An existing bank is compared once the data are read.
    """
    advice = "add --replace"
    check_place(run.out, replace=run.replace, advice=advice)
    if run.spec.adamix is not None and run.replace:
        check_place(run.bank, replace=True, advice=advice)
    elif run.spec.adamix is not None:
        run.existing_bank(advice=advice)
    for folder in (run.out, run.bank) if run.spec.adamix is not None else (run.out,):
        if run.checkpoint is not None and run.checkpoint.resolve().is_relative_to(folder.resolve()):
            raise InvalidParameter(
                f"The checkpoint cannot be in {folder}, because the adapter replaces that folder: choose another one.",
                param="checkpoint",
            )
    new_directory_beside(run.out).rmdir()


def _train(entry: BaseEntry, run: TrainingRun) -> Trained:
    """Train, and write the adapter directory."""
    from registry.base_model import load_base
    from training import train as training

    examples = training.read_data(run)  # before the base is loaded, which takes longer
    base = load_base(entry)
    with (
        interrupts.continue_hint(saved=run.checkpoint is not None),
        interrupts.stoppable() as should_stop,
        training_progress(run.spec.recipe) as report,
    ):
        return training.train(run, base, data=examples, progress=report, should_stop=should_stop)
