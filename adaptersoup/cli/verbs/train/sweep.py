"""`soup train sweep`: trains a grid of adapters from one initialisation, and prints a table of the results."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeVar

import typer

from adaptersoup.cli.base_model_flags import BaseModelOptions
from adaptersoup.cli.commands import command
from adaptersoup.cli.failures import FAILED, Failures
from adaptersoup.cli.flags import ParsedFlags
from adaptersoup.cli.output import answer, talk
from adaptersoup.cli.remote import Address
from adaptersoup.cli.verbs.train import interrupts
from adaptersoup.cli.verbs.train.progress import Table, progress_table
from adaptersoup.cli.verbs.train.record import validation
from adaptersoup.cli.verbs.train.training_flags import TRAINING, SampleSize, spec_of
from adaptersoup.client import SoupClient
from adaptersoup.client.additions import Additions, name_of
from adaptersoup.client.answers import Json
from adaptersoup.client.samples import read_texts
from adaptersoup.tables import columns
from registry.errors import InvalidParameter
from registry.formats import AdapterDirectory
from registry.names import check_part
from training.request import merge_request
from training.spec import BANK, SAMPLE

if TYPE_CHECKING:
    from registry.spec import BaseEntry
    from training import sweep as sweeping
    from training.spec import TrainingSpec
    from training.sweep import Cell, Row

Number = TypeVar("Number", int, float)


@dataclass(frozen=True, kw_only=True)
class GridFlags:
    """The options for the grid: domains, learning rates and seeds, with one base model."""

    domains: Annotated[
        list[Path], typer.Argument(help="Folders with train.jsonl(.gz) and valid.jsonl(.gz).", metavar="DOMAIN...")
    ]
    out: Annotated[Path, typer.Option("--out", help="Folder for the adapter directories.")]
    learning_rates: Annotated[str, typer.Option("--lr", help="Learning rates, separated by commas.")] = "1e-3"
    seeds: Annotated[str, typer.Option("--seed", help="Seeds of the data order, separated by commas.")] = "0"
    base: BaseModelOptions

    def axes(self) -> tuple[list[float], list[int]]:
        """The learning rates and seeds; raises a usage error for text that is not a number."""
        return _by_commas("--lr", self.learning_rates, float), _by_commas("--seed", self.seeds, int)


@dataclass(frozen=True, kw_only=True)
class ExecutionFlags:
    """The options for the number of parallel cells, and for a Ray cluster."""

    SECTION: ClassVar[str] = "Sample and execution"
    sample: SampleSize = SAMPLE
    parallel: Annotated[
        int | None,
        typer.Option(min=1, help="Cells to train at once, each in a process; by default 1, on Ray as many as fit."),
    ] = None
    on: Annotated[
        str | None,
        typer.Option(
            metavar="ray[=HOST:PORT]",
            help="Train on the Ray cluster with this head, or on a temporary one of this machine.",
        ),
    ] = None
    cores: Annotated[
        int | None, typer.Option(min=1, help="With --on ray: CPU cores and threads of each cell; by default 1.")
    ] = None


@command
def sweep(
    context: typer.Context,
    grid: GridFlags,
    flags: Annotated[ParsedFlags, TRAINING.without("learning_rate", "data_seed")],
    execution: ExecutionFlags,
    namespace: Annotated[
        str | None, typer.Option("--push", help="Push the trained adapters to this namespace of a server.")
    ] = None,
    *,
    address: Address,
    as_json: Annotated[bool, typer.Option("--json", help="Print the table as JSON.")] = False,
) -> None:
    """Train a grid of adapters from one initialisation: learning rates x seeds x domains.

    Writes each cell to OUT/DOMAIN-lrRATE-seedSEED, and prints a table. The same command resumes an interrupted sweep,
    and trains no cell twice. A cell that diverges does not stop the others. --parallel trains several cells at once,
    --on ray trains them as tasks of a Ray cluster. --push pushes all trained adapters at the end, banks of experts with
    their merges.

    \b
    Examples:
      soup train sweep texts/law --bases bases.toml --lr 7e-3,4e-3,1e-3 --seed 1,2,3 --out adapters --steps 500
      soup train sweep texts/* --bases bases.toml --base small --out adapters --parallel 2 --push team
      soup train sweep texts/* --bases bases.toml --base small --out adapters --on ray=10.0.0.5:6379 --cores 4
      soup push adapters/* --namespace team --wait
    """
    client = None
    if namespace is not None:  # before hours of work
        check_part(namespace, "namespace")
        client = address.client(context)
    entry = grid.base.entry()
    cell_grid = _cell_grid(grid, spec_of(flags), execution.sample)
    if namespace is not None:
        _check_names(cell_grid)
    rows = _sweep(entry, cell_grid, execution)
    pushed = {} if namespace is None or client is None else push_rows(client, rows, namespace)
    header = ("adapter", "state", "figure", "before", "after", "best step", "steps")
    refs = None if namespace is None else pushed
    values = [_json_row(row, refs) for row in rows]
    answer({"object": "list", "data": values}, columns(header, [_table_row(row) for row in rows]), json=as_json)
    missing = [row for row in rows if row.problem is not None]
    for row in missing:
        talk(f"{row.cell.name}: {row.problem}")
    if missing or (namespace is not None and len(pushed) < len(rows)):
        raise typer.Exit(FAILED)


def _by_commas(option: str, text: str, kind: type[Number]) -> list[Number]:
    """Parse numbers separated by commas; raises BadParameter."""
    try:
        return [kind(number) for number in text.split(",")]
    except ValueError:
        numbers = "whole numbers" if kind is int else "numbers"
        raise typer.BadParameter(f"{option} takes {numbers} separated by commas, not {text!r}.") from None


def _cell_grid(grid: GridFlags, spec: TrainingSpec, sample: int) -> sweeping.Grid:
    """Read the domains, and list the cells."""
    from training import sweep as sweeping

    axes = grid.axes()  # raises before data are read
    cells = sweeping.cells_of([sweeping.read_domain(folder, spec) for folder in grid.domains], *axes)
    return sweeping.Grid(cells, spec, grid.out, sample=sample, base_id=grid.base.base)


def _check_names(grid: sweeping.Grid) -> None:
    """Raise InvalidParameter if two cells would be pushed under one name, InvalidName if that of a bank is too long."""
    cells: dict[str, str] = {}
    for cell in grid.cells:
        name = name_of(grid.out / cell.name)
        first = cells.setdefault(name, cell.name)
        if first != cell.name:
            raise InvalidParameter(
                f"{first} and {cell.name} would both be pushed as {name}: names have at most 64 of a-z, 0-9, '.', '_' "
                "and '-'. Rename the folder of a domain, or leave out --push.",
                param="domains",
            )
        if grid.spec.adamix is not None:
            check_part(name + BANK, "name of the bank")


def _sweep(entry: BaseEntry, grid: sweeping.Grid, execution: ExecutionFlags) -> list[Row]:
    """Train every cell, printing each result; returns the results in the order of the grid."""
    rows: dict[str, Row] = {}
    with (
        interrupts.continue_hint(saved=True),
        interrupts.stoppable() as should_stop,
        progress_table([cell.name for cell in grid.cells], grid.spec.recipe) as table,
    ):
        for row in _results(entry, grid, execution, table, should_stop):
            rows[row.cell.name] = row
            table.ended(row.cell.name, row.state)
            talk(f"{len(rows)} of {len(grid.cells)}: {row.cell.name} {_result_text(row)}")
            if row.note is not None:
                talk(f"{row.cell.name}: {row.note}")
    return [rows[cell.name] for cell in grid.cells]


def _results(
    entry: BaseEntry, grid: sweeping.Grid, execution: ExecutionFlags, table: Table, should_stop: Callable[[], bool]
) -> Iterator[Row]:
    """The results of the cells as they arrive."""
    from registry.base_model import load_base, load_text
    from registry.tasks.run import open_pool
    from training.sweep import sweep

    def report(cell: Cell, step: int, steps: int, message: str) -> None:
        table.at(cell.name, step, steps, message)

    if execution.on is None and execution.cores is None and execution.parallel in (None, 1):
        yield from sweep(load_base(entry), grid, progress=report, should_stop=should_stop)
        return
    with open_pool(execution.on, at_once=execution.parallel, cores=execution.cores) as pool:
        yield from sweep(load_text(entry), grid, pool=pool, progress=report, should_stop=should_stop)


def _result_text(row: Row) -> str:
    if row.problem is not None:
        return row.state
    figure, initial, final = validation(row.record)
    return f"{row.state}, validation {figure} {initial:.4g} -> {final:.4g}"


def _table_row(row: Row) -> tuple[object, ...]:
    if row.problem is not None:
        return (row.cell.name, row.state, *(None,) * 5)
    return (row.cell.name, row.state, *validation(row.record), row.record["best_step"], row.record["steps"])


def _json_row(row: Row, refs: Mapping[str, str] | None) -> dict[str, Any]:
    """A cell's result as JSON; `refs` has the names of the pushed adapters by cell."""
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
        **({} if refs is None else {"ref": refs.get(row.cell.name)}),
    }


def push_rows(client: SoupClient, rows: Sequence[Row], namespace: str) -> dict[str, str]:
    """Push every adapter of the grid, except refused ones; returns name and version by cell.

    The best on validation data is pushed last, since selectors use the newest adapter of a domain. A server that has
    the best from an earlier sweep keeps that version, which is then older than the others: the user is warned.
    """
    pushed: dict[str, str] = {}
    members: dict[str, list[Json]] = defaultdict(list)
    with client:
        for row in sorted(rows, key=_validation_loss, reverse=True):
            if row.folder is None:
                continue
            with Failures().of(row.cell.name):
                ref, member = _push(client, row.folder, f"{namespace}/{name_of(row.folder.path)}")
                pushed[row.cell.name] = ref
                members[row.cell.domain.name].append(member)
                talk(f"{row.cell.name} is {ref}")
    for domain, pushed_members in members.items():
        _warn_of_newer(domain, pushed_members)
    return pushed


def _warn_of_newer(domain: str, members: Sequence[Json]) -> None:
    """Name the pushed adapters of a domain that are newer than the best, which is the last of `members`."""
    *worse, best = members
    created_at = datetime.fromisoformat(best["created_at"])
    newer = [str(member["ref"]) for member in worse if datetime.fromisoformat(member["created_at"]) > created_at]
    if newer:
        talk(
            f"{domain}: {best['ref']} is the best, and selectors use the newest adapter of a domain. "
            f"`soup rm {' '.join(newer)}` retires what is newer."
        )


def _validation_loss(row: Row) -> float:
    """The lowest validation loss of a cell; infinite without one."""
    return min((loss for _step, loss in row.record.get("valid_history", ())), default=math.inf)


def _push(client: SoupClient, folder: AdapterDirectory, name: str) -> tuple[str, Json]:
    """Push one adapter; returns its name and version, and the adapter that selectors see.

    Of a bank of experts, which is what selectors see, the server makes the merge, and so records its ingredients.
    """
    bank = folder.path.with_name(folder.path.name + BANK)
    if "bank" not in folder.provenance.training or not bank.is_dir():
        adapter = client.push_directory(folder, name=name)
        return str(adapter["ref"]), adapter
    sample = None if folder.sample is None else read_texts(folder.sample)
    adapter = client.push_directory(bank, name=name + BANK, more=Additions(texts=sample))
    return str(client.cook(merge_request(str(adapter["ref"]), name=name))["model"]), adapter
