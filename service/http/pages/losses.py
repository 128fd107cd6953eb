"""The losses of a training by step, read from a stored record, as a plot, a table and a CSV file.

A pushed adapter may have any record: losses that are not as our trainer writes them are ignored.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, ValidationError

from plots.results import losses_plot
from plots.style import LIGHT, Theme
from service.http.pages.downloads import Column, Drawings, Table
from service.http.schemas.wire import Wire

MAX_ROWS = 25
"""Rows of the table on the page, about; the CSV file has all."""
Point = tuple[int, float]
POINTS = TypeAdapter(
    list[tuple[Annotated[int, Field(ge=0, lt=2**53)], Annotated[float, Field(gt=-1e6, lt=1e6, allow_inf_nan=False)]]]
)
"""Steps and losses that can be drawn."""


class Losses(Wire):
    """The losses of a training, by step or by pass over the sample."""

    by: Literal["step", "pass"]
    best: int | None
    """The step or pass whose state was kept."""
    training: list[Point]
    """Mean loss on the training data since the point before."""
    held_out: list[Point]
    """Mean loss on held-out data; the first point is before training."""


def training_losses(record: Mapping[str, Any]) -> Losses | None:
    """The losses in the training record of an adapter; None if it has none that can be read."""
    training, held_out = _points(record.get("train_history")), _points(record.get("valid_history"))
    if not training and not held_out:
        return None
    best = record.get("best_step")
    has_best = type(best) is int and best in dict(held_out)
    return Losses(by="step", best=best if has_best else None, training=training, held_out=held_out)


def tuning_losses(evidence: Sequence[Mapping[str, Any]]) -> Losses | None:
    """The losses of a soup's tuning, from its newest evidence that has a tuning; None if there is none."""
    for item in reversed(evidence):
        report = (item.get("search") or {}).get("tuning")
        if report:
            training = list(enumerate(report.get("trained_losses", ()), 1))
            held_out = list(enumerate(report["losses"]))
            return Losses(by="pass", best=report["kept"], training=training, held_out=held_out)
    return None


def _points(value: object) -> list[Point]:
    """The points of a record, by ascending steps; empty if `value` is anything else."""
    try:
        points = POINTS.validate_json(json.dumps(value), strict=True)
    except ValidationError:
        return []
    steps = [step for step, _ in points]
    return points if steps == sorted(set(steps)) else []


def losses_table(losses: Losses, *, max_rows: int | None = None) -> Table:
    """A row for each step with a loss, or about `max_rows` of them evenly with the first, the last and the best."""
    training, held_out = dict(losses.training), dict(losses.held_out)
    steps = sorted({*training, *held_out})
    if max_rows is not None and len(steps) > max_rows:
        listed = {*steps[:: math.ceil(len(steps) / max_rows)], steps[-1], losses.best}
        steps = [step for step in steps if step in listed]
    columns = (
        Column(losses.by.capitalize(), "number"),
        Column("Training loss", "number"),
        Column("Held-out loss", "number"),
        Column("Kept"),
    )
    rows = tuple((step, training.get(step), held_out.get(step), "✓" if step == losses.best else None) for step in steps)
    return Table("losses", f"Mean loss by {losses.by}", columns, rows)


def losses_context(losses: Losses | None) -> dict[str, Any]:
    """The values of the template `losses.html`."""
    return {
        "losses": losses,
        "loss_table": None if losses is None else losses_table(losses, max_rows=MAX_ROWS),
        "has_curve": bool(losses_drawings(losses, LIGHT)),
    }


def losses_drawings(losses: Losses | None, theme: Theme) -> Drawings:
    """The plot `losses`; none if no series has two points."""
    if losses is None or max(len(losses.training), len(losses.held_out)) < 2:
        return {}
    return {
        "losses": partial(
            losses_plot,
            "",
            by=losses.by,
            training=losses.training,
            held_out=losses.held_out,
            best=losses.best,
            theme=theme,
        )
    }
