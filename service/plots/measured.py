"""What a cook found against the base: differences of mean NLL with their intervals. Read by pictures and by pages."""

from __future__ import annotations

from dataclasses import dataclass

from registry.spec import Search, Verification
from registry.spec.search import WAYS


@dataclass(frozen=True)
class Measured:
    """Something that was measured: a difference, and from where to where it may be."""

    label: str
    value: float
    low: float
    high: float
    chosen: bool = False

    @classmethod
    def within(cls, label: str, value: float, reach: float, *, chosen: bool = False) -> Measured:
        """A difference that may be so much less or more."""
        return cls(label, value, value - reach, value + reach, chosen)


def differences(search: Search | None, check: Verification | None, *, abstained: bool) -> list[Measured]:
    """Every difference against the base that was found on passages which had no part in choosing, or on the sample."""
    found: list[Measured] = []
    if search is not None and search.held_out > 1:
        reach = _errors_within(check)
        for trial in search.trials:
            chosen = check is not None and trial.difference == check.difference
            found.append(
                Measured.within(WAYS[trial.way], trial.difference, reach * trial.standard_error, chosen=chosen)
            )
        if search.single is not None:
            single = search.single
            label = f"{single.ref}, by itself"
            found.append(Measured.within(label, single.difference, reach * single.standard_error))
        if search.noise is not None:
            noise = search.noise
            found.append(Measured.within("Adapters of noise (control)", noise.difference, reach * noise.standard_error))
    if check is not None and not any(one.chosen for one in found) and check.interval is not None:
        label = "The soup that was not good enough" if abstained else "The soup"
        found.append(Measured(label, check.difference, *check.interval, chosen=True))
    return found


def _errors_within(check: Verification | None) -> float:
    """Standard errors from a difference to the end of its interval, the same for all over the same passages."""
    if check is None or check.interval is None or not check.standard_error:
        return 0.0
    return (check.interval[1] - check.difference) / check.standard_error
