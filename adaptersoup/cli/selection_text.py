"""Selections and soups as text, for `soup select` and `soup cook`: a table of adapters, and messages about them."""

from __future__ import annotations

from collections.abc import Sequence

from adaptersoup.cli.output import talk
from adaptersoup.tables import columns, fields, table_width
from registry.spec import (
    MixReport,
    NoiseControl,
    Search,
    Selection,
    SingleBeside,
    Trial,
    TuningReport,
    Verification,
    WeighedCandidate,
)
from registry.spec.search import WAYS
from service.http.schemas.selectors import Selected
from service.http.schemas.soups import HigherEffort, Soup


def selection_table(selection: Selection) -> str:
    """The chosen adapters with their weights and stability, then the rejected ones with the reason."""
    chosen = [(row.ref, row.domain, row.score, row.weight, _share(row.stability), "") for row in selection.selected]
    rejected = [(row.ref, row.domain, row.score, "-", "-", row.reason) for row in selection.left_out]
    header = ("adapter", "domain", "score", "weight", "stability", "why not")
    more = [f"{count} more were left out: {reason}" for reason, count in selection.more_left_out.items()]
    return "\n".join([columns(header, chosen + rejected, within=table_width()), *more])


def _share(stability: float | None) -> str:
    return "-" if stability is None else f"{100 * stability:.0f} %"


def talk_about_selection(selection: Selection, answer: Selected | Soup) -> None:
    """Print on stderr: abstention, novelty, thresholds, warnings, and adapters that are not in the pool yet."""
    if selection.abstained:
        talk(f"Abstained: {selection.reason}")
    novelty = selection.novelty
    facts = fields(
        [
            ("looked at", f"{selection.units} units of the sample" if selection.units else None),
            ("novelty", None if novelty is None else f"{novelty:.0f} (percentile among the pool's own domains)"),
            ("by cluster", [f"{count} in {cluster}" for cluster, count in selection.counts.items()]),
            *((f"least {name.removeprefix('min_')}", least) for name, least in selection.thresholds.items()),
            ("selector", answer.selector),
            ("not yet included", answer.not_yet_included),
        ]
    )
    notes = [*selection.warnings, *(answer.sample.notes if answer.sample else ())]
    for text in [facts, *(f"Note: {note}" for note in notes)]:
        if text:
            talk(text)


def talk_about_soup(soup: Soup) -> None:
    """Print on stderr: the selection, the evidence and the costs of a cook."""
    if soup.selection is not None:
        if soup.search is None or not soup.search.candidates:  # the table of candidates has the same adapters
            talk(selection_table(soup.selection))
        talk_about_selection(soup.selection, soup)
    if soup.abstained:
        talk(f"The base model is the answer: {soup.reason}")
    elif soup.cached:
        talk("Cooked before: the same soup is used again.")
    if soup.search is not None:
        _talk_about_search(soup.search)
    if soup.verification is not None:
        talk(_verification_text(soup.verification))
    if soup.report is not None and not soup.abstained:
        talk(_mixing_text(soup.reason, soup.report))
    for note in () if soup.report is None else soup.report.notes:
        talk(f"Note: {note}")
    if soup.spent is not None:
        passes = soup.spent.passes
        work = "" if passes is None else f", as much as {passes:.1f} passes of the base model over the sample"
        more = ", ".join(map(_price_text, soup.beyond))
        talk(f"Took {soup.spent.seconds:.1f} s{work}." + (f" Higher efforts: {more}." if more else ""))


def _talk_about_search(search: Search) -> None:
    """Print on stderr: the weighed candidates or the tuning, and the trials on held-out passages."""
    if search.candidates:
        talk(_candidates_table(search.candidates))
    if search.tuning is not None:
        talk(_tuning_text(search, search.tuning))
    for trial in search.trials:
        talk(_trial_text(trial, search.held_out))
    if search.single is not None:
        subject = f"{search.single.ref}, the best single adapter (chosen on the other passages)"
        talk(_rival_text(subject, search.single, "it"))
    if search.noise is not None:
        talk(_rival_text("Random adapters of the same sizes, weighed the same way (control)", search.noise, "them"))


def _candidates_table(candidates: Sequence[WeighedCandidate]) -> str:
    """The weighed candidates; the last column, `alone`, only if one was scored alone."""
    rows = [
        (
            row.ref,
            row.domain,
            f"{row.score:+.4f}",
            "" if row.standard_error is None else f"{row.standard_error:.4f}",
            "-" if row.coefficient is None else f"{row.coefficient:.3f}",
            "" if row.alone is None else f"{row.alone:+.4f}",
        )
        for row in candidates
    ]
    header = ("weighed", "domain", "takes off", "standard error", "coefficient", "alone")
    count = len(header) - (not any(row[-1] for row in rows))
    return columns(header[:count], [row[:count] for row in rows], within=table_width())


def _tuning_text(search: Search, tuning: TuningReport) -> str:
    """The losses of a tuning, and the best number of passes."""
    losses = ", ".join(f"{loss:.4f}" for loss in tuning.losses)
    best = f"after pass {tuning.kept}" if tuning.kept else "at the start"
    return (
        f"Trained on {search.decided_on} passages at rate {tuning.rate}; mean NLL of held-out passages at "
        f"the start and after each pass: {losses}; lowest {best}."
    )


def _trial_text(trial: Trial, held_out: int) -> str:
    return (
        f"{WAYS[trial.way]} (of {trial.members}, width {trial.width}) on {held_out} passages that were held "
        f"out: {_difference(trial)} against the base."
    )


def _rival_text(subject: str, rival: SingleBeside | NoiseControl, pronoun: str) -> str:
    """A rival's difference to the base model, and the soup's difference to the rival, in nats per token."""
    ahead = f"{rival.ahead:+.4f} (standard error {rival.ahead_standard_error:.4f})"
    return f"{subject}: {_difference(rival)} against the base; the soup against {pronoun}: {ahead}."


def _difference(row: Trial | SingleBeside | NoiseControl) -> str:
    """The difference of a row to the base model, in nats per token."""
    return f"{row.difference:+.4f} (standard error {row.standard_error:.4f})"


def _verification_text(verification: Verification) -> str:
    """The soup against the base model, on held-out passages or the sample."""
    texts = "the held-out passages" if verification.held_out else "the sample"
    limits, verdict = verification.interval, "better" if verification.difference < 0 else "not better"
    interval = f", 90 % interval {limits[0]:+.4f} to {limits[1]:+.4f}" if limits else ""
    return (
        f"On {texts}: {verification.difference:+.4f} (standard error {verification.standard_error:.4f}"
        f"{interval}) mean NLL per token against the base ({verdict}), over {verification.passages} passages."
    )


def _price_text(price: HigherEffort) -> str:
    """The estimated cost of a higher effort, and by how much past cooks with it lowered the NLL, if there were any."""
    cost = f"{price.effort} about {price.seconds:.0f} s"
    if price.gain is None:
        return cost
    cooks = "1 past cook" if price.cooks == 1 else f"{price.cooks} past cooks"
    return f"{cost} (lowered the NLL by {price.gain:.3f} nats per token in the median of {cooks})"


def _mixing_text(reason: str, report: MixReport) -> str:
    """The reason for the mixing, the soup's relative cost and width, and its distance from the exact mixture."""
    if report.members == 1:
        return reason
    figures = [f"{report.relative_cost:.2f} times the cost of one adapter"]
    if report.width_out:
        figures.append(f"width {report.width_out}")
    if report.residual is not None:
        figures.append(f"{report.residual:.2g} from the exact mixture")
    return f"{reason} ({', '.join(figures)})".strip()
