"""A selection as text, for `soup select` and `soup cook`: a table of adapters, and messages about them."""

from __future__ import annotations

from typing import Any

from adaptersoup.cli.output import talk
from adaptersoup.tables import columns, fields, table_width
from registry.spec.search import WAYS


def selection_table(selection: dict[str, Any]) -> str:
    """The chosen adapters with their weights and stability, then the rejected ones with the reason."""
    chosen = [
        (row["ref"], row["domain"], row.get("score"), row["weight"], _share(row.get("stability")), "")
        for row in selection["selected"]
    ]
    rejected = [(row["ref"], row["domain"], row.get("score"), "-", "-", row["reason"]) for row in selection["left_out"]]
    header = ("adapter", "domain", "score", "weight", "stability", "why not")
    more = [f"{count} more were left out: {reason}" for reason, count in (selection.get("more_left_out") or {}).items()]
    return "\n".join([columns(header, chosen + rejected, within=table_width()), *more])


def _share(stability: float | None) -> str:
    return "-" if stability is None else f"{100 * stability:.0f} %"


def talk_about(answer: dict[str, Any]) -> None:
    """Print on stderr: abstention, novelty, thresholds, warnings, and adapters that are not in the pool yet."""
    selection = answer.get("selection") or {}
    if selection.get("abstained"):
        talk(f"Abstained: {selection.get('reason')}")
    novelty = selection.get("novelty")
    facts = fields(
        [
            ("looked at", f"{selection['units']} units of the sample" if selection.get("units") else None),
            ("novelty", None if novelty is None else f"{novelty:.0f} (percentile among the pool's own domains)"),
            ("by cluster", [f"{count} in {cluster}" for cluster, count in (selection.get("counts") or {}).items()]),
            *(
                (f"least {name.removeprefix('min_')}", least)
                for name, least in (selection.get("thresholds") or {}).items()
            ),
            ("selector", answer.get("selector")),
            ("not yet included", answer.get("not_yet_included")),
        ]
    )
    notes = [*(selection.get("warnings") or ()), *((answer.get("sample") or {}).get("notes") or ())]
    for text in [facts, *(f"Note: {note}" for note in notes)]:
        if text:
            talk(text)


def talk_about_search(search: dict[str, Any]) -> None:
    """Print on stderr: the weighed candidates or the tuning, and the trials on held-out passages."""
    for text in (
        _candidates_table(search["candidates"]),
        _tuning_text(search),
        *(_trial_text(trial, search["held_out"]) for trial in search["trials"]),
        _single_text(search.get("single")),
        _noise_text(search.get("noise")),
    ):
        if text:
            talk(text)


def _candidates_table(candidates: list[dict[str, Any]]) -> str:
    """The weighed candidates; the last column, `alone`, only if one was scored alone."""
    if not candidates:
        return ""
    rows = [
        (
            row["ref"],
            row["domain"],
            f"{row['score']:+.4f}",
            "" if row["standard_error"] is None else f"{row['standard_error']:.4f}",
            "-" if row["coefficient"] is None else f"{row['coefficient']:.3f}",
            "" if row["alone"] is None else f"{row['alone']:+.4f}",
        )
        for row in candidates
    ]
    header = ("weighed", "domain", "takes off", "standard error", "coefficient", "alone")
    count = len(header) - (not any(row[-1] for row in rows))
    return columns(header[:count], [row[:count] for row in rows], within=table_width())


def _tuning_text(search: dict[str, Any]) -> str:
    tuning = search.get("tuning")
    if tuning is None:
        return ""
    losses = ", ".join(f"{loss:.4f}" for loss in tuning["losses"])
    return (
        f"Trained on {search['decided_on']} passages at rate {tuning['rate']}; mean NLL of held-out passages at "
        f"the start and after each pass: {losses}; kept: {_state(tuning['kept'])}."
    )


def _trial_text(trial: dict[str, Any], held_out: int) -> str:
    name = WAYS[trial["way"]]
    return (
        f"{name} (of {trial['members']}, width {trial['width']}) on {held_out} passages that were held "
        f"out: {_difference(trial)} against the base."
    )


def _single_text(single: dict[str, Any] | None) -> str:
    if single is None:
        return ""
    return (
        f"{single['ref']}, the best single adapter (chosen on the other passages): "
        f"{_difference(single)} against the base; the soup against it: {_ahead(single)}."
    )


def _noise_text(noise: dict[str, Any] | None) -> str:
    if noise is None:
        return ""
    return (
        f"Random adapters of the same sizes, weighed the same way (control): {_difference(noise)} against the base; "
        f"the soup against them: {_ahead(noise)}."
    )


def _difference(row: dict[str, Any]) -> str:
    """The difference of a row to the base model, in nats per token."""
    return f"{row['difference']:+.4f} (standard error {row['standard_error']:.4f})"


def _ahead(row: dict[str, Any]) -> str:
    """The difference of the soup to a row, in nats per token."""
    return f"{row['ahead']:+.4f} (standard error {row['ahead_standard_error']:.4f})"


def talk_about_price(cooked: dict[str, Any]) -> None:
    """Print on stderr: the cost of a cook, and the estimated costs of higher efforts."""
    spent = cooked.get("spent")
    if spent is None:
        return
    passes = "" if spent["passes"] is None else f", {spent['passes']:.1f} passes of the base over the sample"
    more = [
        f"{effort['effort']} about {effort['seconds']:.0f} s{_gain(effort)}" for effort in cooked.get("beyond") or ()
    ]
    talk(f"Took {spent['seconds']:.1f} s{passes}." + (f" Higher efforts: {', '.join(more)}." if more else ""))


def _gain(effort: dict[str, Any]) -> str:
    """By how much past cooks with an effort lowered the NLL, in brackets; empty where there were none."""
    if effort.get("gain") is None:
        return ""
    cooks = "1 past cook" if effort["cooks"] == 1 else f"{effort['cooks']} past cooks"
    return f" (lowered the NLL by {effort['gain']:.3f} nats per token in the median of {cooks})"


def _state(best_pass: int) -> str:
    return f"that after pass {best_pass}" if best_pass else "the start"
