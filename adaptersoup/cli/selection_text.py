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
    rows = [
        (
            candidate["ref"],
            candidate["domain"],
            f"{candidate['score']:+.4f}",
            "" if candidate["standard_error"] is None else f"{candidate['standard_error']:.4f}",
            "-" if candidate["coefficient"] is None else f"{candidate['coefficient']:.3f}",
            "" if candidate["alone"] is None else f"{candidate['alone']:+.4f}",
        )
        for candidate in search["candidates"]
    ]
    if rows:
        header = ("weighed", "domain", "takes off", "standard error", "coefficient", "alone")
        count = len(header) - (not any(row[-1] for row in rows))
        talk(columns(header[:count], [row[:count] for row in rows], within=table_width()))
    tuning = search.get("tuning")
    if tuning is not None:
        losses = ", ".join(f"{loss:.4f}" for loss in tuning["losses"])
        talk(
            f"Trained on {search['decided_on']} passages at rate {tuning['rate']}; mean NLL of held-out passages at "
            f"the start and after each pass: {losses}; kept: {_state(tuning['kept'])}."
        )
    for trial in search["trials"]:
        name = WAYS[trial["way"]]
        talk(
            f"{name} (of {trial['members']}, width {trial['width']}) on {search['held_out']} passages that were held "
            f"out: {trial['difference']:+.4f} (standard error {trial['standard_error']:.4f}) against the base."
        )
    single = search.get("single")
    if single is not None:
        talk(
            f"{single['ref']}, the best adapter by itself as far as the others say, on the same passages: "
            f"{single['difference']:+.4f} (standard error {single['standard_error']:.4f}) against the base; the soup "
            f"against it: {single['ahead']:+.4f} (standard error {single['ahead_standard_error']:.4f})."
        )
    noise = search.get("noise")
    if noise is not None:
        talk(
            f"Adapters of noise, weighed alike, on the same passages: {noise['difference']:+.4f} (standard error "
            f"{noise['standard_error']:.4f}) against the base; the soup against them: {noise['ahead']:+.4f} (standard "
            f"error {noise['ahead_standard_error']:.4f})."
        )


def talk_about_price(cooked: dict[str, Any]) -> None:
    """Print on stderr: the cost of a cook, and the estimated costs of higher efforts."""
    spent = cooked.get("spent")
    if spent is None:
        return
    passes = "" if spent["passes"] is None else f", {spent['passes']:.1f} passes of the base over the sample"
    more = [f"effort {effort['effort']} about {effort['seconds']:.0f} s" for effort in cooked.get("beyond") or ()]
    talk(f"Took {spent['seconds']:.1f} s{passes}." + (f" More: {', '.join(more)}." if more else ""))


def _state(best_pass: int) -> str:
    return f"that after pass {best_pass}" if best_pass else "the start"
