"""The results of all cells: rows of variants, rates, spans and curves, claims with verdicts, and figures.

Called by `lm_adapters` when all cells are done; it only reads their records, which may be of an earlier run.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean
from typing import Any

import numpy as np

from benchmarks.claims import Claim, Estimate, Scored, claim_row, contrast
from benchmarks.lm import papers
from benchmarks.lm.cells import Cell
from benchmarks.lm.plan import NORMAL, REFERENCE, Size, Variant
from benchmarks.lm.scoring import spans
from benchmarks.report import Result
from demo.results import Figure, Row

Record = Mapping[str, Any]
BASE = "base"


@dataclass(frozen=True)
class Run:
    """A finished run: its cells with their records, and `variants` in the order of the tables."""

    size: Size
    layers: int
    variants: Sequence[Variant]
    cells: Sequence[Cell]
    records: Mapping[str, Record]

    def of(self, variant: str, domain: str) -> list[tuple[Cell, Record]]:
        """The cells that were scored on test text, seed by seed."""
        found = [
            (cell, self.records[cell.key])
            for cell in self.cells
            if cell.variant == variant and cell.data.domain == domain and "test" in cell.measures
        ]
        return sorted(found, key=lambda one: one[0].seed)

    @property
    def largest(self) -> int:
        """The m of the Houlsby adapter whose spans are removed."""
        return 64 if 64 in self.size.sizes else self.size.sizes[-1]


def chosen_rates(cells: Iterable[Cell], records: Mapping[str, Record]) -> dict[str, dict[float, float]]:
    """Family -> rate -> mean of the best validation loss over domains; infinite where one diverged."""
    family = {variant: name for name, variant in REFERENCE.items()}
    losses: dict[str, dict[float, list[float]]] = {}
    for cell in cells:
        if cell.variant in family:
            by_rate = losses.setdefault(family[cell.variant], {})
            by_rate.setdefault(cell.recipe.learning_rate, []).append(_best(records[cell.key]))
    return {name: {rate: fmean(found) for rate, found in by_rate.items()} for name, by_rate in losses.items()}


def _best(record: Record) -> float:
    return math.inf if "diverged" in record else min(nll for _, nll in record["history"])


def best_rate(losses: Mapping[float, float]) -> float:
    """The rate with the lowest loss, of equal ones the lower."""
    return min(losses, key=lambda rate: (losses[rate], rate))


def result_of(run: Run, rates: Mapping[str, Mapping[float, float]]) -> Result:
    """Everything, in the form of a results file."""
    scored = scores_of(run)
    claims = list(claims_of(run, scored))
    rows: list[Row] = [
        *variant_rows(run, scored), *claims, *rate_rows(rates), *span_rows(run, scored), *curve_rows(run)
    ]  # fmt: skip
    return Result("lm_adapters", dict(figures_of(run, scored, claims)), rows)


# --- scores -----------------------------------------------------------------------------------------


def scores_of(run: Run) -> dict[str, Scored]:
    """By domain, every variant that did not diverge with any seed, and what was measured of some beside that."""
    found = {}
    for domain in run.size.domains:
        [(_, base)] = run.of(BASE, domain)
        nll = {BASE: np.array([base["nll"]])}
        for variant in run.variants:
            records = [record for _, record in run.of(variant.name, domain)]
            if records and not any("diverged" in record for record in records):
                nll[variant.name] = np.array([record["nll"] for record in records])
                if "routing" in records[0]:
                    nll["routed"] = np.array([np.mean(record["routing"], axis=0) for record in records])
        found[domain] = Scored(np.array(base["tokens"]), nll)
    return found


def span_scores(run: Run, scored: Mapping[str, Scored]) -> dict[str, Scored]:
    """The same with the adapters of spans removed, on the passages on which that was scored."""
    name = f"houlsby_{run.largest}"
    found = {}
    for domain, whole in scored.items():
        records = [record for _, record in run.of(name, domain)]
        count = min(run.size.span_texts, len(whole.tokens))
        nll = {model: rows[:, :count] for model, rows in whole.nll.items() if model in {BASE, name}}
        if name in nll:
            for first, last in spans(run.layers):
                span = f"{first}-{last}"
                nll[f"without_{span}"] = np.array([record["spans"][span] for record in records])
        found[domain] = Scored(whole.tokens[:count], nll)
    return found


# --- rows -------------------------------------------------------------------------------------------


def variant_rows(run: Run, scored: Mapping[str, Scored]) -> Iterator[Row]:
    """A row for each variant and domain."""
    for domain in run.size.domains:
        [(cell, record)] = run.of(BASE, domain)
        yield _row(BASE, "base model", "", domain, [(cell, record)], scored[domain])
    for variant in run.variants:
        for domain in run.size.domains:
            if found := run.of(variant.name, domain):
                yield _row(variant.name, variant.label, variant.paper, domain, found, scored[domain])


def _row(name: str, label: str, paper: str, domain: str, found: Sequence[tuple[Cell, Record]], scored: Scored) -> Row:
    cell, record = found[0]
    diverged = [one["diverged"] for _, one in found if "diverged" in one]
    about: Row = {
        "method": name, "label": label, "paper": paper, "domain": domain, "seeds": len(found),
        "passages": cell.data.test_texts, "tokens": int(scored.tokens.sum()),
        "training_tokens": cell.training_tokens,
    }  # fmt: skip
    if name != BASE:
        about |= {"learning_rate": cell.recipe.learning_rate, "dtype": cell.recipe.dtype}
    if cell.std is not None:
        about["init_std"] = cell.std
    if diverged:
        return {**about, "diverged": diverged[0]}
    about |= {key: record[key] for key in ("parameters_trained", "parameters_served", "relative_cost")}
    tokens, sums = scored.tokens.sum(), scored.nll[name].sum(axis=1)
    mean = float(sums.mean() / tokens)
    against = contrast({domain: scored}, {name: 1.0, BASE: -1.0}) if name != BASE else None
    return {
        **about,
        "nll": mean,
        "perplexity": math.exp(mean),
        "bits_per_byte": float(sums.mean()) / math.log(2) / sum(record["bytes"]),
        "nll_by_seed": [float(one / tokens) for one in sums],
        "difference": 0.0 if against is None else against.value,
        "standard_error": 0.0 if against is None else against.standard_error,
    }


def rate_rows(rates: Mapping[str, Mapping[float, float]]) -> Iterator[Row]:
    """A row for each learning rate that was tried."""
    for family, losses in rates.items():
        best = best_rate(losses)
        for rate, loss in losses.items():
            yield {
                "rate_of": family, "learning_rate": rate, "valid_nll": None if math.isinf(loss) else loss,
                "chosen": rate == best,
            }  # fmt: skip


def span_rows(run: Run, scored: Mapping[str, Scored]) -> Iterator[Row]:
    """The loss of NLL without the adapters of each span of layers, in each domain."""
    name = f"houlsby_{run.largest}"
    for domain, some in span_scores(run, scored).items():
        for first, last in spans(run.layers) if name in some.nll else ():
            found = contrast({domain: some}, {f"without_{first}-{last}": 1.0, name: -1.0})
            yield {
                "span": f"{first}-{last}", "domain": domain, "difference": found.value,
                "standard_error": found.standard_error, "passages": len(some.tokens),
            }  # fmt: skip


def curve_rows(run: Run) -> Iterator[Row]:
    """Validation loss by step, mean over domains and seeds, where convergence is compared."""
    for variant in run.variants:
        if not variant.curve:
            continue
        histories = [
            record["history"]
            for domain in run.size.domains
            for _, record in run.of(variant.name, domain)
            if "diverged" not in record
        ]
        for points in zip(*histories, strict=True):
            loss = fmean(nll for _, nll in points)
            yield {"curve": variant.name, "label": variant.label, "step": points[0][0], "valid_nll": loss}


# --- claims -----------------------------------------------------------------------------------------


def claims_of(run: Run, scored: Mapping[str, Scored]) -> Iterator[Row]:
    """A row for each claim of the papers; one about what diverged cannot be decided."""
    removed = span_scores(run, scored)
    for paper, claims in (
        ("houlsby", papers.houlsby(run.largest, run.layers, run.size.scales)),
        ("adamix", papers.ADAMIX), ("sparse", papers.SPARSE),
    ):  # fmt: skip
        for claim in claims:
            about = removed if any(name.startswith("without_") for name in claim.coefficients) else scored
            yield {"of": paper, **_claim(claim, about)}
    for factor in (2, 3, 4):
        yield {"of": "sparse", **_convergence(run, factor)}


def _claim(claim: Claim, scored: Mapping[str, Scored]) -> Row:
    missing = [name for name in claim.coefficients if any(name not in one.nll for one in scored.values())]
    if missing:
        return _undecided(claim, f"{missing[0]} diverged")
    return claim_row(claim, contrast(scored, claim.coefficients), unit="nats a token")


def _undecided(claim: Claim, note: str) -> Row:
    return {
        "claim": claim.name, "paper": claim.paper, "says": claim.says, "difference": None, "standard_error": None,
        "minimum_detectable": None, "unit": "", "verdict": "undetermined", "note": note,
    }  # fmt: skip


def _convergence(run: Run, factor: int) -> Row:
    """Share of the steps to the dense adapter's last validation loss, less the three quarters of the claim."""
    claim = Claim(
        f"large_{factor}_converges_faster", papers.CONVERGENCE,
        f"{factor} times as wide reaches the dense adapter's last validation loss in three quarters of the steps", {},
    )  # fmt: skip
    shares: dict[str, list[float | None]] = {}
    for domain in run.size.domains:
        pairs = zip(run.of("houlsby_16", domain), run.of(f"large_{factor}", domain), strict=True)
        for (_, dense), (_, wide) in pairs:
            if "diverged" in dense or "diverged" in wide:
                return _undecided(claim, "one diverged")
            shares.setdefault(domain, []).append(steps_to(wide["history"], dense["history"][-1][1]))
    values = {
        domain: [(1.0 if one is None else one) - (1 - papers.FASTER) for one in some]
        for domain, some in shares.items()
    }  # fmt: skip
    missed = sum(one is None for some in shares.values() for one in some)
    if missed or max(map(len, values.values())) == 1:
        return _without_error(claim, values, missed)
    found = _over_seeds(values)
    return {**claim_row(claim, found, unit="share of the steps"), "note": "standard error over seeds alone"}


def _without_error(claim: Claim, values: Mapping[str, Sequence[float]], missed: int) -> Row:
    """A row for a training that never reached the loss (counted as all steps), or for a single seed.

    Such values have no valid standard error. If some trainings never reached the loss, the claim is tested on each: it
    *disagrees* if none reached it in three quarters of the steps. Otherwise, and with one seed, it is undetermined.
    """
    every = [value for some in values.values() for value in some]
    means = {domain: fmean(some) for domain, some in values.items()}
    note, verdict = "one seed: no standard error", "undetermined"
    if missed:
        there = sum(value < 0 for value in every)
        note = (
            f"at least, without a standard error: {missed} of {len(every)} trainings never got there and count as all "
            f"steps; {there} of {len(every)} did in three quarters"
        )
        verdict = "undetermined" if there else "disagrees"
    return {
        **_undecided(claim, note), "difference": fmean(means.values()), "by_domain": means, "verdict": verdict,
        "unit": "share of the steps", "not_reached": missed,
    }  # fmt: skip


def steps_to(history: Sequence[Sequence[float]], loss: float) -> float | None:
    """The share of the steps after which the validation loss is first at `loss`, on straight lines between points.

    None where it never is.
    """
    last = history[-1][0]
    for (step, before), (later, after) in pairwise(history):
        if after <= loss:
            part = (before - loss) / (before - after) if before > loss else 0.0
            return (step + part * (later - step)) / last
    return None


def _over_seeds(values: Mapping[str, Sequence[float]]) -> Estimate:
    """The mean of values by domain and seed, with what the spread over seeds says of it, pooled over domains.

    There is more than one seed.
    """
    freedom = sum(len(some) - 1 for some in values.values())
    spread = sum(float(((np.array(some) - fmean(some)) ** 2).sum()) for some in values.values())
    pooled = spread / freedom
    error = math.sqrt(sum(pooled / len(some) for some in values.values())) / len(values)
    means = {domain: fmean(some) for domain, some in values.items()}
    return Estimate(fmean(means.values()), error, 0.0, error, means)


# --- figures ----------------------------------------------------------------------------------------


def figures_of(run: Run, scored: Mapping[str, Scored], claims: Sequence[Row]) -> Iterator[tuple[str, Figure]]:
    """Counts of verdicts, and shares of full fine-tuning's gain."""
    for verdict in ("agrees", "disagrees", "undetermined"):
        count = sum(row["verdict"] == verdict for row in claims)
        yield f"claims_{verdict}", Figure(count, "claims", note=f"of {len(claims)}")
    effects = [row["minimum_detectable"] for row in claims if row["unit"] == "nats a token"]
    if effects:
        note = "what a claim's contrast would have to be for four chances in five; the median claim"
        yield "minimum_detectable_median", Figure(float(np.median(effects)), "nats a token", note=note)
    for name in (f"houlsby_{run.largest}", "houlsby_8", "pfeiffer_16", "adamix", "lora", "mam", "large_4"):
        if all({name, "full"} <= set(one.nll) for one in scored.values()):
            full = contrast(scored, {"full": 1.0, BASE: -1.0}).value
            share = contrast(scored, {name: 1.0, BASE: -1.0}).value / full
            yield f"gain_{name}_over_full", Figure(share, "ratio", note="of the gain over the base, mean of domains")
    dtypes = sorted({cell.recipe.dtype for cell in run.cells if cell.trains != "nothing"})
    size = "" if run.size == NORMAL else "; not the normal size"
    note = f"trained in {', '.join(dtypes)}, scored in float32, one thread each{size}"
    yield "cells", Figure(len(run.cells), "trainings", note=note)
    yield "training_tokens", Figure(sum(cell.training_tokens for cell in run.cells), "tokens")
