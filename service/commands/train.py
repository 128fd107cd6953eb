"""`soup train`: adapters for the texts of domains, trained here and written as directories to push.

It needs no server. Torch is imported when training begins, not for the help.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from registry.errors import Conflict, InvalidParameter
from service.commands import train_options as options
from service.commands.failures import FAILED
from service.commands.output import as_json as print_json
from service.commands.output import columns, data, progress_bar, talk

if TYPE_CHECKING:
    from registry.spec import BaseEntry
    from training.sweep import Row
    from training.trainer import Trained

app = typer.Typer(rich_markup_mode=None, add_completion=False)
SAMPLE = 200


@app.callback(invoke_without_command=True)
def train(
    context: typer.Context,
    texts: Annotated[Path | None, typer.Option("--texts", help='Training text: .jsonl(.gz) of {"text"}.')] = None,
    valid: Annotated[
        Path | None, typer.Option("--valid", help="Other text of the domain; the best state on it is kept.")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", help="Adapter directory to write.")] = None,
    base_folder: options.BaseFolder = None,
    bases: options.Bases = None,
    base: options.Base = None,
    domain: Annotated[str | None, typer.Option("--domain", help="Domain label; by default the folder's name.")] = None,
    method: options.Method = "bottleneck",
    structure: options.Structure = None,
    bottleneck: options.Bottleneck = None,
    rank: options.Rank = None,
    alpha: options.Alpha = None,
    targets: options.Targets = None,
    init: options.InitOption = None,
    init_seed: options.InitSeed = 0,
    steps: options.Steps = 200,
    batch: options.Batch = 8,
    accumulate: options.Accumulate = 1,
    block: options.Block = None,
    learning_rate: Annotated[float, typer.Option("--lr", help="Highest learning rate.")] = 1e-3,
    schedule: options.Schedule = "linear",
    warmup: options.Warmup = 0.05,
    weight_decay: options.WeightDecay = 0.0,
    dtype: options.Dtype = "float32",
    evaluations: options.Evaluations = 4,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of the order of the data and of the sample.")] = 0,
    sample: options.Sample = SAMPLE,
    checkpoint: Annotated[
        Path | None,
        typer.Option("--checkpoint", help="Folder to save the state in, and to go on from where it holds one."),
    ] = None,
    checkpoint_seconds: Annotated[
        float, typer.Option("--checkpoint-seconds", min=0, help="How often it is saved.")
    ] = 60.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print directory and record as JSON.")] = False,
    replace: Annotated[bool, typer.Option("--replace", help="Overwrite the directory if it is there.")] = False,
) -> None:
    """Train an adapter on texts of a domain.

    Adapters that are to be averaged need the same base, structure and --init-seed: then they start from the same
    tensors, and the directory says so. Prints the directory, which `soup push` takes; that of a LoRA is PEFT's.

    With --checkpoint, a training that was stopped or killed goes on where the same command is run again, to the same
    adapter; a checkpoint of another training is refused. It is removed when the adapter is written.

    \b
    Examples:
      soup train --base-folder models/gpt2 --texts law.jsonl --valid law-valid.jsonl --out adapters/law
      soup train --bases bases.toml --base small --texts a.jsonl.gz --valid b.jsonl.gz --out adapters/a --steps 500
      soup train --bases bases.toml --texts a.jsonl --valid b.jsonl --out lora/a --method lora --rank 16 --lr 3e-4
      soup train sweep texts/law texts/medicine --bases bases.toml --lr 1e-3,1e-4 --seed 1,2,3 --out adapters
      soup push adapters/law --name team/law --wait
    """
    if context.invoked_subcommand is not None:
        options.refuse_before_verb(context)
        return
    texts, valid, out = options.needed(texts=texts, valid=valid, out=out)
    _check_places(out, checkpoint, replace=replace)
    wanted = options.Wanted(method, structure, bottleneck, rank, alpha, targets, init)
    wanted.check()
    numbers = {
        "steps": steps, "batch": batch, "accumulate": accumulate, "block": block, "learning_rate": learning_rate,
        "schedule": schedule, "warmup": warmup, "weight_decay": weight_decay, "dtype": dtype,
        "evaluations": evaluations, "data_seed": seed,
    }  # fmt: skip
    trained = _train(
        options.entry_of(base_folder, bases, base), (texts, valid), wanted, numbers, init_seed=init_seed, out=out,
        domain=domain or out.resolve().name, base_id=base, sample=sample, replace=replace,
        checkpoint=None if checkpoint is None else (checkpoint, checkpoint_seconds),
    )  # fmt: skip
    _tell(trained)
    if as_json:
        print_json({"object": "folder", "path": str(out), **trained.provenance.model_dump(mode="json")})
    else:
        data(str(out))


def _check_places(out: Path, checkpoint: Path | None, *, replace: bool) -> None:
    if out.exists() and not replace and (not out.is_dir() or any(out.iterdir())):
        raise Conflict(f"{out} exists and is not empty: choose another directory, or add --replace.")
    if checkpoint is not None and checkpoint.resolve().is_relative_to(out.resolve()):
        raise InvalidParameter(
            f"The checkpoint cannot be in {out}, which the adapter takes the place of: choose another folder.",
            param="checkpoint",
        )


def _train(
    entry: BaseEntry, files: tuple[Path, Path], wanted: options.Wanted, numbers: dict[str, Any], *, init_seed: int,
    out: Path, domain: str, base_id: str | None, sample: int, replace: bool, checkpoint: tuple[Path, float] | None,
) -> Trained:  # fmt: skip
    """Train, and write what comes of it."""
    from registry.base_model import load_base
    from training.checkpoint import Saving, discard
    from training.recipe import recipe_of
    from training.texts import draw, read_texts
    from training.trainer import train_adapter, write_trained

    texts, valid_texts = read_texts(files[0]), read_texts(files[1])
    recipe_of(options.with_block(numbers, 2))  # what is wrong whatever the base is, before it is loaded
    base = load_base(entry)
    recipe = recipe_of(options.with_block(numbers, base.shape.context))
    saving = None if checkpoint is None else Saving(checkpoint[0], every_seconds=checkpoint[1])
    with (
        options.saying_how_to_go_on(saved=saving is not None),
        options.stoppable() as should_stop,
        progress_bar("training") as report,
    ):
        trained = train_adapter(
            base, wanted.config(base.shape), texts, valid_texts, recipe=recipe, init_seed=init_seed,
            init=wanted.start, progress=report, should_stop=should_stop, saving=saving,
        )  # fmt: skip
    write_trained(
        out, trained, base, domain=domain, base_id=base_id, replace=replace,
        passages=draw(texts, sample, seed=numbers["data_seed"]),
    )  # fmt: skip
    if saving is not None:
        discard(saving.folder)
    return trained


def _tell(trained: Trained) -> None:
    """What came of it, for people."""
    record = trained.record
    if trained.resumed_at is not None:
        talk(f"Went on from the checkpoint after step {trained.resumed_at}.")
    parameters = record["parameters"]
    talk(f"Parameters: {parameters['trained']:,} trained, {100 * parameters['share']:.2g} % of the base model's.")
    if record["tokens_left_out"]:
        talk(
            f"Left out at the end, where they fill no block: {record['tokens_left_out']} tokens, "
            f"{record['texts_left_out']} whole texts."
        )
    talk(
        f"Perplexity on validation text: {record['valid_perplexity_before']:.2f} before, "
        f"{record['valid_perplexity']:.2f} after (step {record['best_step']})."
    )


@app.command("sweep")
def sweep(
    domains: Annotated[
        list[Path], typer.Argument(help="Folders with train.jsonl(.gz) and valid.jsonl(.gz).", metavar="DOMAIN...")
    ],
    out: Annotated[Path, typer.Option("--out", help="Folder for the adapter directories.")],
    learning_rates: Annotated[str, typer.Option("--lr", help="Learning rates, separated by commas.")] = "1e-3",
    seeds: Annotated[str, typer.Option("--seed", help="Seeds of the order of the data, by commas.")] = "0",
    base_folder: options.BaseFolder = None,
    bases: options.Bases = None,
    base: options.Base = None,
    method: options.Method = "bottleneck",
    structure: options.Structure = None,
    bottleneck: options.Bottleneck = None,
    rank: options.Rank = None,
    alpha: options.Alpha = None,
    targets: options.Targets = None,
    init: options.InitOption = None,
    init_seed: options.InitSeed = 0,
    steps: options.Steps = 200,
    batch: options.Batch = 8,
    accumulate: options.Accumulate = 1,
    block: options.Block = None,
    schedule: options.Schedule = "linear",
    warmup: options.Warmup = 0.05,
    weight_decay: options.WeightDecay = 0.0,
    dtype: options.Dtype = "float32",
    evaluations: options.Evaluations = 4,
    sample: options.Sample = SAMPLE,
    as_json: Annotated[bool, typer.Option("--json", help="Print the table as JSON.")] = False,
) -> None:
    """Train a grid of adapters from one initialisation: learning rates x seeds x domains.

    One cell after another, each a directory OUT/DOMAIN-lrRATE-seedSEED. The same command run again goes on where it
    was stopped and trains nothing twice. A cell that diverges does not end the others. Prints a table.

    \b
    Examples:
      soup train sweep texts/law --bases bases.toml --lr 7e-3,4e-3,1e-3 --seed 1,2,3 --out adapters --steps 500
      soup push adapters/* --namespace team --wait
    """
    wanted = options.Wanted(method, structure, bottleneck, rank, alpha, targets, init)
    wanted.check()
    numbers = {
        "steps": steps, "batch": batch, "accumulate": accumulate, "block": block, "schedule": schedule,
        "warmup": warmup, "weight_decay": weight_decay, "dtype": dtype, "evaluations": evaluations,
    }  # fmt: skip
    rows = _sweep(
        options.entry_of(base_folder, bases, base), domains, wanted, numbers,
        grid=(options.floats("--lr", learning_rates), options.integers("--seed", seeds)),
        out=out, init_seed=init_seed, sample=sample, base_id=base,
    )  # fmt: skip
    if as_json:
        print_json({"object": "list", "data": [_json_row(row) for row in rows]})
    else:
        data(columns(("adapter", "state", "before", "after", "best step", "steps"), [_line(row) for row in rows]))
    diverged = [row for row in rows if row.problem is not None]
    for row in diverged:
        talk(f"{row.cell.name}: {row.problem}")
    if diverged:
        raise typer.Exit(FAILED)


def _sweep(
    entry: BaseEntry, folders: list[Path], wanted: options.Wanted, numbers: dict[str, Any], *,
    grid: tuple[list[float], list[int]], out: Path, init_seed: int, sample: int, base_id: str | None,
) -> list[Row]:  # fmt: skip
    """Every cell's outcome, told on the way."""
    from registry.base_model import load_base
    from training import sweep as sweeping
    from training.recipe import recipe_of

    cells = sweeping.grid([sweeping.read_domain(folder) for folder in folders], *grid)
    recipe_of(options.with_block(numbers, 2))
    base = load_base(entry)
    plan = sweeping.Plan(
        config=wanted.config(base.shape), recipe=recipe_of(options.with_block(numbers, base.shape.context)), out=out,
        init=wanted.start, init_seed=init_seed, sample=sample, base_id=base_id,
    )  # fmt: skip
    rows: list[Row] = []
    with (
        options.saying_how_to_go_on(saved=True),
        options.stoppable() as should_stop,
        progress_bar("sweep") as report,
    ):
        for row in sweeping.sweep(base, cells, plan, progress=report, should_stop=should_stop):
            rows.append(row)
            talk(f"{len(rows)} of {len(cells)}: {row.cell.name} {_said(row)}")
    return rows


def _said(row: Row) -> str:
    if row.state == "diverged":
        return "diverged"
    before, after = row.record["valid_perplexity_before"], row.record["valid_perplexity"]
    return f"{row.state}, validation perplexity {before:.2f} -> {after:.2f}"


def _line(row: Row) -> tuple[object, ...]:
    found = [row.record.get(name) for name in ("valid_perplexity_before", "valid_perplexity", "best_step", "steps")]
    return (row.cell.name, row.state, *found)


def _json_row(row: Row) -> dict[str, Any]:
    folder = row.folder
    return {
        "object": "folder",
        "name": row.cell.name,
        "domain": row.cell.domain.name,
        "learning_rate": row.cell.learning_rate,
        "data_seed": row.cell.data_seed,
        "state": row.state,
        "path": None if folder is None else str(folder.path),
        "problem": row.problem,
        **({} if folder is None else folder.provenance.model_dump(mode="json")),
    }
