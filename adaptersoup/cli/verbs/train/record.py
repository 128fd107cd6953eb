"""What a training's record says, for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from adaptersoup.cli.output import talk

if TYPE_CHECKING:
    from training.trainer import Trained

BEYOND_A_BLOCK = {
    "texts_cut": "texts cut",
    "questions_cut": "questions cut",
    "contexts_in_windows": "contexts read in several windows",
    "documents_cut": "documents cut",
    "documents_left_out": "documents left out, with whose summary nothing of them fits",
}
"""What a record counts of data that a block is too short for, in words."""


def validation(record: Mapping[str, Any]) -> tuple[float | None, float | None]:
    """Perplexity on validation data before and after a training; the loss where the task has no perplexity."""
    what = "valid_perplexity" if "valid_perplexity" in record else "valid_loss"
    return record.get(f"{what}_before"), record.get(what)


def tell(trained: Trained) -> None:
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
