"""Tests claims of papers with our measurements: an estimate, its standard error, and a verdict for each.

Called by the experiments that reproduce the papers' claims on language models. A claim is a *contrast*: a sum of mean
NLLs with coefficients that add up to zero, made so that the claim says it is negative. Examples are `snip - random <
0`, and `adapter - 0.9 full - 0.1 base < 0`: an adapter has nine tenths of the gain of full fine-tuning. Everything is
paired: the same passages, and the same seed of data and initialisation, on both sides.

- The estimate on a domain is the mean over seeds of sum(d_s) / sum(n_s) over passages s.
- Its standard error has two parts, which are added as variances. One is a bootstrap over passages of the mean over
  seeds (docs/explanation/methods.md#uncertainty), a lower bound, as passages may share a document. The other is the
  spread over seeds / sqrt(seeds). Its variance is pooled over domains, because two or three seeds are too few to
  estimate it. If each side is a single training, there is no spread: the error is over passages only, and the row
  has a note.
- Domains have equal weights and are not a random sample: the verdict is about these domains only.
- *agrees* below -2 standard errors, *disagrees* above +2, otherwise *undetermined*. The minimum detectable effect is
  the one with a power of 0.8: 2.84 standard errors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from registry.errors import InvalidParameter
from registry.uncertainty import ratio_standard_error

Verdict = Literal["agrees", "disagrees", "undetermined"]
ERRORS = 2.0
"""Standard errors beyond which a verdict is decided."""
POWER = 0.84
"""Further standard errors for a power of 0.8."""


@dataclass(frozen=True)
class Scored:
    """A domain's passages under several models: `nll[model]` (seeds, passages), summed over tokens, in nats.

    A model without seeds has one row; `tokens` (passages,) are the same for all.
    """

    tokens: np.ndarray
    nll: Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Estimate:
    """A difference of mean NLLs in nats a token, with its standard error and what it is made of."""

    value: float
    standard_error: float
    from_passages: float
    from_seeds: float | None
    """None where there is one training on each side: how much another one would differ is not known."""
    by_domain: Mapping[str, float]

    @property
    def minimum_detectable(self) -> float:
        """The size of a true effect that would have been found four times in five."""
        return (ERRORS + POWER) * self.standard_error

    @property
    def verdict(self) -> Verdict:
        """The verdict on the claim that this is negative."""
        return verdict(self.value, self.standard_error)


def verdict(value: float, standard_error: float) -> Verdict:
    """The verdict on the claim that `value` is negative."""
    if abs(value) <= ERRORS * standard_error:
        return "undetermined"
    return "agrees" if value < 0 else "disagrees"


def contrast(domains: Mapping[str, Scored], coefficients: Mapping[str, float]) -> Estimate:
    """The sum of coefficient times mean NLL over models, averaged over domains.

    Raises InvalidParameter where coefficients do not add up to 0, or a model, a seed or a passage is missing.
    """
    if abs(sum(coefficients.values())) > 1e-9:
        raise InvalidParameter(f"The coefficients of a contrast add up to 0, not {sum(coefficients.values()):g}.")
    values, passages, spreads, freedom = {}, [], [], 0
    for name, scored in domains.items():
        sums = _sums(name, scored, coefficients)  # (seeds, passages)
        by_seed = sums.sum(axis=1) / scored.tokens.sum()
        values[name] = float(by_seed.mean())
        passages.append(ratio_standard_error(sums.mean(axis=0), scored.tokens))
        spreads.append((float(((by_seed - by_seed.mean()) ** 2).sum()), len(by_seed)))
        freedom += len(by_seed) - 1
    count = len(domains)
    from_passages = float(np.sqrt(sum(error**2 for error in passages))) / count
    from_seeds: float | None = None
    if freedom:
        pooled = sum(spread for spread, _ in spreads) / freedom
        from_seeds = float(np.sqrt(sum(pooled / seeds for _, seeds in spreads))) / count
    return Estimate(
        value=sum(values.values()) / count, standard_error=float(np.hypot(from_passages, from_seeds or 0.0)),
        from_passages=from_passages, from_seeds=from_seeds, by_domain=values,
    )  # fmt: skip


def _sums(domain: str, scored: Scored, coefficients: Mapping[str, float]) -> np.ndarray:
    """(seeds, passages): the contrast of the NLL sums; a model without seeds is repeated for every seed."""
    missing = [model for model in coefficients if model not in scored.nll]
    if missing:
        raise InvalidParameter(f"Domain {domain}: {missing[0]} was not measured.", param="models")
    rows = {model: np.asarray(scored.nll[model], dtype=np.float64) for model in coefficients}
    seeds = max(len(row) for row in rows.values())
    for model, row in rows.items():
        if row.ndim != 2 or row.shape[1] != len(scored.tokens) or len(row) not in {1, seeds}:
            raise InvalidParameter(
                f"Domain {domain}: {model} has {list(row.shape)} scores, and {seeds} seeds of {len(scored.tokens)} "
                "passages are compared.",
                param="models",
            )
    total = np.zeros((seeds, len(scored.tokens)))
    for model, row in rows.items():
        total = total + coefficients[model] * row
    return total


@dataclass(frozen=True)
class Claim:
    """A claim of a paper (`paper`: with its figure), and the contrast that is negative if the claim holds here."""

    name: str
    paper: str
    says: str
    coefficients: Mapping[str, float]


def claim_row(claim: Claim, found: Estimate, *, unit: str) -> dict[str, Any]:
    """One claim with its estimate; `unit` is that of the difference."""
    return {
        "claim": claim.name,
        "paper": claim.paper,
        "says": claim.says,
        "difference": found.value,
        "standard_error": found.standard_error,
        "standard_error_passages": found.from_passages,
        "standard_error_seeds": found.from_seeds,
        "minimum_detectable": found.minimum_detectable,
        "by_domain": dict(found.by_domain),
        "unit": unit,
        "verdict": found.verdict,
    }
