"""The losses of a training by its steps: read from a stored record, as a plot, a table and a CSV.

A record comes with whatever is pushed, and may say anything: what is not as our trainer writes it is not drawn.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Literal

from plots.results import losses_plot
from plots.style import LIGHT, Theme
from service.http.pages.plot_files import Drawings
from service.http.pages.tables import Column, Table
from service.http.schemas.wire import Wire

TABLED = 25
"""Rows of the table on the page; the CSV has all."""
Point = tuple[int, float]


class Losses(Wire):
    """The losses of a training, by what it counts (steps, or passes over a sample)."""

    by: Literal["step", "pass"]
    best: int | None
    """The step or pass whose state was kept."""
    training: list[Point]
    """Mean loss of what was trained on, since the one before."""
    held_out: list[Point]
    """Of what had no part in training; the first is that of the start."""


def of_record(record: Mapping[str, Any]) -> Losses | None:
    """The losses in the training record of an adapter; None where there are none that can be read."""
    training, held_out = _points(record.get("train_history")), _points(record.get("valid_history"))
    best = record.get("best_step")
    if not training and not held_out:
        return None
    kept = best if type(best) is int and best in {step for step, _ in held_out} else None
    return Losses(by="step", best=kept, training=training, held_out=held_out)


def of_tuning(evidence: Sequence[Mapping[str, Any]]) -> Losses | None:
    """The losses of a soup's tuning, in its newest evidence that has one; None where none has."""
    reports = [((one.get("search") or {}).get("tuning")) for one in evidence]
    report = next((one for one in reversed(reports) if one), None)
    if report is None:
        return None
    return Losses(
        by="pass",
        best=report["kept"],
        training=list(enumerate(report.get("trained_losses", ()), 1)),
        held_out=list(enumerate(report["losses"])),
    )


def _points(value: object) -> list[Point]:
    """(step, loss) by ascending steps; nothing where any of it is another thing, or too large to be drawn."""
    pairs = value if isinstance(value, list) else []
    good = [
        (one[0], float(one[1]))
        for one in pairs
        if isinstance(one, list)
        and len(one) == 2
        and type(one[0]) is int
        and 0 <= one[0] < 2**53
        and type(one[1]) in {int, float}
        and abs(one[1]) < 1e6
    ]
    steps = [step for step, _ in good]
    return good if len(good) == len(pairs) and steps == sorted(set(steps)) else []


def losses_table(found: Losses, *, most: int | None = None) -> Table:
    """Every step that has a loss, or about `most` of them evenly, the first, the last and the best among them."""
    training, held_out = dict(found.training), dict(found.held_out)
    steps = sorted({*training, *held_out})
    if most is not None and len(steps) > most:
        every = math.ceil(len(steps) / most)
        kept = {*steps[::every], steps[-1], found.best}
        steps = [step for step in steps if step in kept]
    columns = (
        Column(found.by.capitalize(), "number"),
        Column("Loss in training", "number"),
        Column("Loss on what was held out", "number"),
        Column("Kept"),
    )
    rows = tuple((step, training.get(step), held_out.get(step), "✓" if step == found.best else None) for step in steps)
    return Table("losses", f"Mean loss by {found.by}", columns, rows)


def losses_values(losses: Losses | None) -> dict[str, Any]:
    """What the template of the losses needs."""
    table = None if losses is None else losses_table(losses, most=TABLED)
    return {"losses": losses, "loss_table": table, "has_curve": bool(losses_plots(losses, LIGHT))}


def losses_plots(losses: Losses | None, theme: Theme) -> Drawings:
    """What draws the curves of the losses, named `losses`; none where no series has two points."""
    if losses is None or max(len(losses.training), len(losses.held_out)) < 2:
        return {}
    draw = partial(
        losses_plot, "", by=losses.by, training=losses.training, held_out=losses.held_out, best=losses.best, theme=theme
    )
    return {"losses": draw}
