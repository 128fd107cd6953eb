"""Prints a training's record."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from adaptersoup.cli.output import talk

if TYPE_CHECKING:
    from training.trainer import Trained

LONGER_THAN_BLOCK = {
    "texts_cut": "texts cut",
    "questions_cut": "questions cut",
    "contexts_in_windows": "contexts read in several windows",
    "documents_cut": "documents cut",
    "documents_left_out": "documents left out, with whose summary nothing of them fits",
}
"""Words for the record's counts of data that are longer than a block."""


def validation(record: Mapping[str, Any]) -> tuple[str, float, float]:
    """`perplexity`, and its value on validation data before and after a training; `loss` where there is none."""
    figure = "perplexity" if "valid_perplexity" in record else "loss"
    return figure, record[f"valid_{figure}_before"], record[f"valid_{figure}"]


def print_record(trained: Trained) -> None:
    """Print the result of a training on stderr."""
    record = trained.record
    if trained.resumed_at is not None:
        talk(f"Went on from the checkpoint after step {trained.resumed_at}.")
    if trained.resume_note is not None:
        talk(trained.resume_note)
    parameters = record["parameters"]
    talk(f"Parameters: {parameters['trained']:,} trained, {100 * parameters['share']:.2g} % of the base model's.")
    requested, rows = record["batch"] * record["accumulate"], record["rows_a_step"]
    if rows < requested:
        talk(
            f"Each step was of {rows} sequences, which are all there are: {requested} were asked for (batch "
            f"{record['batch']}, accumulate {record['accumulate']})."
        )
    if record.get("tokens_left_out"):
        talk(
            f"Left out at the end, where they fill no block: {record['tokens_left_out']} tokens, "
            f"{record['texts_left_out']} whole texts."
        )
    counts = [
        f"{record[split + name]} {words}{' to validate on' if split else ''}"
        for split in ("", "valid_")
        for name, words in LONGER_THAN_BLOCK.items()
        if record.get(split + name)
    ]
    if counts:
        talk(f"Longer than a block of {record['block']} tokens: {', '.join(counts)}.")
    figure, initial, final = validation(record)
    best_step = record["best_step"]
    talk(f"{figure.capitalize()} on validation data: {initial:.4g} before, {final:.4g} after (step {best_step}).")
    if best_step == 0:
        talk(
            "No step was better than the start, so that the adapter is as it began: try another --lr, or more --steps."
        )
