"""A selection as text, for `soup select` and `soup cook`: a table of adapters, and what is said about them."""

from __future__ import annotations

from typing import Any

from adaptersoup.cli.output import talk
from adaptersoup.tables import columns, fields, table_width
from registry.spec.search import WAYS


def selection_table(selection: dict[str, Any]) -> str:
    """The chosen adapters with their weights and how stable they are, then who was left out and why."""
    chosen = [
        (row["ref"], row["domain"], row.get("score"), row["weight"], _share(row.get("stability")), "")
        for row in selection["selected"]
    ]
    others = [(row["ref"], row["domain"], row.get("score"), "-", "-", row["reason"]) for row in selection["left_out"]]
    head = ("adapter", "domain", "score", "weight", "stability", "why not")
    more = [f"{count} more were left out: {why}" for why, count in (selection.get("more_left_out") or {}).items()]
    return "\n".join([columns(head, chosen + others, within=table_width()), *more])


def _share(stability: float | None) -> str:
    return "-" if stability is None else f"{100 * stability:.0f} %"


def talk_about(answer: dict[str, Any]) -> None:
    """On stderr: abstention, novelty, thresholds, warnings, and adapters that came too late."""
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
    """On stderr: who was weighed, or how training went, and what was tried on the passages that were held out."""
    rows = [
        (
            one["ref"],
            one["domain"],
            f"{one['score']:+.4f}",
            "" if one["standard_error"] is None else f"{one['standard_error']:.4f}",
            "-" if one["coefficient"] is None else f"{one['coefficient']:.3f}",
            "" if one["alone"] is None else f"{one['alone']:+.4f}",
        )
        for one in search["candidates"]
    ]
    if rows:
        heads = ("weighed", "domain", "takes off", "standard error", "coefficient", "alone")
        shown = len(heads) - (not any(row[-1] for row in rows))
        talk(columns(heads[:shown], [row[:shown] for row in rows], within=table_width()))
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
    """On stderr: what the cook took, and what efforts that do more would take."""
    spent = cooked.get("spent")
    if spent is None:
        return
    passes = "" if spent["passes"] is None else f", {spent['passes']:.1f} passes of the base over the sample"
    more = [f"effort {one['effort']} about {one['seconds']:.0f} s" for one in cooked.get("beyond") or ()]
    talk(f"Took {spent['seconds']:.1f} s{passes}." + (f" More: {', '.join(more)}." if more else ""))


def _state(kept: int) -> str:
    return f"that after pass {kept}" if kept else "the start"
