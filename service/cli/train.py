"""`soup train`: adapters for the texts of domains, trained here and written as directories to push.

It needs no server. Torch is imported when training begins, not for the help. The verbs below it are in modules of
their own: a grid, and a training on a server.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from registry.errors import InvalidParameter
from registry.formats import check_place
from service.cli import train_options as options
from service.cli.output import as_json as print_json
from service.cli.output import data, progress_bar, talk
from service.cli.train_flags import Asked, asking
from service.cli.train_submit import submit
from service.cli.train_sweep import sweep, validation
from training.request import TrainingRun
from training.spec import SAMPLE, SAVE_SECONDS

if TYPE_CHECKING:
    from registry.spec import BaseEntry
    from training.trainer import Trained

BEYOND_A_BLOCK = {
    "texts_cut": "texts cut",
    "questions_cut": "questions cut",
    "contexts_in_windows": "contexts read in several windows",
    "documents_cut": "documents cut",
    "documents_left_out": "documents left out, with whose summary nothing of them fits",
}
"""What a record counts of data that a block is too short for, in words."""

app = typer.Typer(rich_markup_mode=None, add_completion=False)
app.command("sweep")(sweep)
app.command("submit")(submit)


@app.callback(invoke_without_command=True)
@asking()
def train(
    context: typer.Context,
    *,
    texts: Annotated[
        Path | None, typer.Option("--texts", "--data", help='Training data: .jsonl(.gz), of {"text"} or the task\'s.')
    ] = None,
    valid: Annotated[
        Path | None, typer.Option("--valid", help="Other data of the domain; the best state on it is kept.")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", help="Adapter directory to write.")] = None,
    base_folder: options.BaseFolder = None,
    base_kind: options.BaseKind = "causal",
    bases: options.Bases = None,
    base: options.Base = None,
    domain: Annotated[str | None, typer.Option("--domain", help="Domain label; by default the folder's name.")] = None,
    asked: Asked,
    sample: options.Sample = SAMPLE,
    checkpoint: Annotated[
        Path | None,
        typer.Option("--checkpoint", help="Folder to save the state in, and to go on from where it holds one."),
    ] = None,
    checkpoint_seconds: Annotated[
        float | None,
        typer.Option("--checkpoint-seconds", min=0, help=f"How often it is saved; by default {SAVE_SECONDS:g}."),
    ] = None,
    checkpoint_steps: Annotated[
        int | None, typer.Option("--checkpoint-steps", min=1, help="Also after so many steps.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print directory and record as JSON.")] = False,
    replace: Annotated[bool, typer.Option("--replace", help="Overwrite the directory if it is there.")] = False,
) -> None:
    """Train an adapter on texts of a domain.

    Adapters that are to be averaged need the same base, structure and --init-seed: then they start from the same
    tensors, and the directory says so. Prints the directory, which `soup push` takes; that of a LoRA is PEFT's.

    Data are lines of {"text"}; for another --task those that `soup evaluate --help` names. With --adamix the bank of
    experts is written beside OUT, as OUT-bank, and OUT is its merge.

    With --checkpoint, a training that was stopped or killed goes on where the same command is run again, to the same
    adapter; a checkpoint of another training is refused. It is removed when the adapter is written.

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
        options.refuse_before_verb(context)
        return
    texts, valid, out = options.needed(texts=texts, valid=valid, out=out)
    if checkpoint is None and (checkpoint_seconds is not None or checkpoint_steps is not None):
        raise typer.BadParameter("--checkpoint-seconds, --checkpoint-steps: only with --checkpoint, which says where.")
    if valid.resolve() == texts.resolve():
        raise InvalidParameter(f"--texts and --valid are one file, {texts}: validate on other text.", param="valid")
    spec = asked.spec()
    run = TrainingRun(
        spec=spec, train=texts, valid=valid, out=out, domain=domain or out.resolve().name, base_id=base, sample=sample,
        sample_seed=spec.recipe.data_seed, replace=replace, checkpoint=checkpoint, every_steps=checkpoint_steps,
        every_seconds=SAVE_SECONDS if checkpoint_seconds is None else checkpoint_seconds,
    )  # fmt: skip
    _check_places(run)
    trained = _train(options.entry_of(base_folder, bases, base, base_kind), run)
    _tell(trained)
    if as_json:
        print_json({"object": "folder", "path": str(out), **trained.provenance.model_dump(mode="json")})
    else:
        data(str(out))


def _check_places(run: TrainingRun) -> None:
    """Raises Conflict for what can be seen to be in the way; whose a bank is that is there, is known with the data."""
    how = "add --replace"
    check_place(run.out, replace=run.replace, how=how)
    if run.spec.adamix is not None and run.replace:
        check_place(run.bank, replace=True, how=how)
    elif run.spec.adamix is not None:
        run.bank_there(how=how)
    if run.checkpoint is not None and run.checkpoint.resolve().is_relative_to(run.out.resolve()):
        raise InvalidParameter(
            f"The checkpoint cannot be in {run.out}, which the adapter takes the place of: choose another folder.",
            param="checkpoint",
        )


def _train(entry: BaseEntry, run: TrainingRun) -> Trained:
    """Train, and write what comes of it."""
    from registry.base_model import load_base
    from training import train as training

    given = training.read_data(run)  # what is wrong whatever the base is, before it is loaded
    base = load_base(entry)
    with (
        options.saying_how_to_go_on(saved=run.checkpoint is not None),
        options.stoppable() as should_stop,
        progress_bar("training") as report,
    ):
        return training.train(run, base, data=given, progress=report, should_stop=should_stop)


def _tell(trained: Trained) -> None:
    """What came of it, for people."""
    record = trained.record
    if trained.resumed_at is not None:
        talk(f"Went on from the checkpoint after step {trained.resumed_at}.")
    if trained.resume_note is not None:
        talk(trained.resume_note)
    parameters = record["parameters"]
    talk(f"Parameters: {parameters['trained']:,} trained, {100 * parameters['share']:.2g} % of the base model's.")
    asked, rows = record["batch"] * record["accumulate"], record["rows_a_step"]
    if rows < asked:
        talk(
            f"Each step was of {rows} sequences, which are all there are: {asked} were asked for (batch "
            f"{record['batch']}, accumulate {record['accumulate']})."
        )
    if record.get("tokens_left_out"):
        talk(
            f"Left out at the end, where they fill no block: {record['tokens_left_out']} tokens, "
            f"{record['texts_left_out']} whole texts."
        )
    beyond = [
        f"{record[part + name]} {words}{' to validate on' if part else ''}"
        for part in ("", "valid_")
        for name, words in BEYOND_A_BLOCK.items()
        if record.get(part + name)
    ]
    if beyond:
        talk(f"Longer than a block of {record['block']} tokens: {', '.join(beyond)}.")
    what = "Perplexity" if "valid_perplexity" in record else "Loss"
    before, after = validation(record)
    talk(f"{what} on validation data: {before:.4g} before, {after:.4g} after (step {record['best_step']}).")
    if record["best_step"] == 0:
        talk(
            "No step was better than the start, so that the adapter is as it began: try another --lr, or more --steps."
        )
