"""The diagnosis: what a server's answers to an adapter's probe say about the model that it serves.

Called by the diagnosis route. The adapter itself, faults of the base model and *base only* are decided first. The other
verdicts are hypotheses with a distance and a tolerance: the nearest within its tolerance holds, and if there is none
the model is *broken*. The distance of the server's base model from the stored one shows how much its dtype or
quantisation accounts for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from registry.probes.distance import distance
from registry.probes.scale_fit import fit_scale
from registry.spec import SCALED_TEXTS, AdapterProbe, BaseProbe, Diagnosis, Readings, ServerReadings, Verdict

EXACT = 0.005
"""Nats that rounding and the order of sums account for: measured 0.0005 at most."""
DTYPE_RATIO = 1.5
"""The distance of an adapter from its probe may be this many times that of its base model."""
LARGEST_DTYPE_ERROR = 0.6
"""A base model that is further away is another one, or reads other tokens."""
ADAPTER_SHARE = 0.02
"""The share of its effect that an adapter's own dtype may account for, beside an exact base model."""
UNREAD_RATIO, UNREAD_ERROR = 0.25, 0.3
"""Without the server's base model: the share of the adapter's effect, and the nats, that its dtype may account for."""
WORTH = 0.5
"""The share of the distance at scale 1 that may remain at another: with noise the best factor is never exactly 1."""
SAME_FACTOR = 1.05
"""Factors up to this one, and down to its inverse, are no wrong scale."""


OtherReadings = Callable[[], Mapping[str, Readings]]
"""Takes the readings of further adapters of the base model, by ref."""
AtScales = Callable[[], AdapterProbe]
"""Takes the adapter's probe with readings at other scales, if it has a scale."""


class Measured(NamedTuple):
    """The distances of a server's answers; `allowed` is what the dtype of its base model accounts for."""

    server: ServerReadings
    error: float
    effect: float
    base_error: float | None
    allowed: float

    def says(
        self, verdict: Verdict, sentence: str, *, factor: float | None = None, served: str | None = None
    ) -> Diagnosis:
        """A diagnosis with these distances, rounded."""
        return Diagnosis(
            verdict=verdict,
            sentence=sentence,
            error=round(self.error, 4),
            effect=round(self.effect, 4),
            base_error=None if self.base_error is None else round(self.base_error, 4),
            factor=factor,
            served=served,
        )


def effect_of(base: BaseProbe, probe: AdapterProbe) -> float:
    """How much an adapter changes its base model's probe, in nats."""
    return distance(probe.readings, base.readings)


def diagnose(
    server: ServerReadings,
    base: BaseProbe,
    probe: AdapterProbe,
    *,
    other_readings: OtherReadings,
    at_scales: AtScales,
) -> Diagnosis:
    """Diagnose a server's readings of all texts of a probe; the callables are called only where it needs them."""
    measured = _measure(server, base, probe)
    if measured.error <= EXACT:
        return measured.says("same", _same_sentence(measured))
    return (
        _base_problem(measured, base)
        or _without_effect(measured)
        or _base_only(measured, base)
        or _nearest(measured, base, other_readings, at_scales)
        or measured.says(
            "broken",
            f"It is neither the adapter nor its base model nor another adapter, at any scale: {measured.error:.3f} "
            f"nats from the adapter, whose effect is {measured.effect:.3f}. Part of its modules or ranks may be "
            f"missing.{_unread(measured)}",
        )
    )


def _measure(server: ServerReadings, base: BaseProbe, probe: AdapterProbe) -> Measured:
    error, effect = distance(server.model, probe.readings), effect_of(base, probe)
    if server.base is None:
        return Measured(server, error, effect, None, max(EXACT, min(UNREAD_RATIO * effect, UNREAD_ERROR)))
    base_error = distance(server.base, base.readings)
    return Measured(server, error, effect, base_error, EXACT + DTYPE_RATIO * base_error)


def _same_sentence(measured: Measured) -> str:
    if measured.effect <= EXACT:
        return "It answers as the adapter, which has no effect on the probe: the base model alone would answer so too."
    return f"It is the adapter, within {measured.error:.4f} nats."


def _base_problem(measured: Measured, base: BaseProbe) -> Diagnosis | None:
    """The diagnosis of a server whose base model reads other tokens, or is another one."""
    if measured.server.base is None or measured.base_error is None or measured.base_error <= EXACT:
        return None
    for readings, sentence in (
        (base.without_bos, "The server puts no BOS in front of a prompt, and the adapter was trained with one."),
        (base.with_two_bos, "The server puts a second BOS in front of a prompt."),
    ):
        if readings and distance(measured.server.base[: len(readings)], readings) <= measured.base_error / 3:
            return measured.says("broken", sentence)
    if measured.base_error > LARGEST_DTYPE_ERROR:
        return measured.says(
            "broken",
            f"The server's base model is {measured.base_error:.3f} nats from the stored one, more than a quantisation "
            "accounts for: it is another model, or reads other tokens.",
        )
    return None


def _without_effect(measured: Measured) -> Diagnosis | None:
    """The diagnosis of an adapter that changes nothing: only its base model's dtype can differ."""
    if measured.effect > EXACT or measured.error > measured.allowed:
        return None
    return measured.says("other_dtype", _same_sentence(measured))


def _base_only(measured: Measured, base: BaseProbe) -> Diagnosis | None:
    """The diagnosis of a model that answers as the base model, the server's own if that was read."""
    server = measured.server
    error = distance(server.model, base.readings if server.base is None else server.base)
    allowed = measured.allowed if server.base is None else EXACT
    if error > min(allowed, measured.error):
        return None
    return measured.says("base_only", f"It is the base model alone: the adapter has no effect.{_unread(measured)}")


class _Hypothesis(NamedTuple):
    """A distance within its tolerance, and the diagnosis that it stands for."""

    error: float
    diagnosis: Diagnosis


def _nearest(
    measured: Measured, base: BaseProbe, other_readings: OtherReadings, at_scales: AtScales
) -> Diagnosis | None:
    """The diagnosis of the nearest of the adapter itself, other adapters, and the adapter at another scale."""
    hypotheses = [
        *_as_other_dtype(measured),
        *_as_other_adapter(measured, other_readings()),
        *_as_scaled(measured, base, at_scales()),
    ]
    return min(hypotheses, key=lambda hypothesis: hypothesis.error).diagnosis if hypotheses else None


def _as_other_dtype(measured: Measured) -> list[_Hypothesis]:
    if measured.error > max(measured.allowed, ADAPTER_SHARE * measured.effect):
        return []
    sentence = f"It is the adapter in another dtype or quantisation, within {measured.error:.3f} nats"
    if measured.base_error is None:
        return [_Hypothesis(measured.error, measured.says("other_dtype", f"{sentence}.{_unread(measured)}"))]
    sentence += f"; the server's base model is within {measured.base_error:.3f}."
    return [_Hypothesis(measured.error, measured.says("other_dtype", sentence))]


def _as_other_adapter(measured: Measured, readings_by_ref: Mapping[str, Readings]) -> list[_Hypothesis]:
    errors = {ref: distance(measured.server.model, readings) for ref, readings in readings_by_ref.items()}
    ref = min(errors, key=lambda ref: errors[ref], default=None)
    if ref is None or errors[ref] > measured.allowed:
        return []
    sentence = f"It is another adapter, {ref}, within {errors[ref]:.4f} nats."
    return [_Hypothesis(errors[ref], measured.says("other_adapter", sentence, served=ref))]


def _as_scaled(measured: Measured, base: BaseProbe, probe: AdapterProbe) -> list[_Hypothesis]:
    fit = fit_scale(measured.server.model, base.readings, probe)
    if fit is None or 1 / SAME_FACTOR <= fit.factor <= SAME_FACTOR:
        return []
    unscaled = distance(measured.server.model[:SCALED_TEXTS], probe.readings[:SCALED_TEXTS])
    if fit.error > min(measured.allowed + fit.uncertainty, WORTH * unscaled):
        return []
    sentence = f"Its scale is wrong: the update is multiplied by {fit.factor:.2g}, within {fit.error:.3f} nats."
    sentence += _unread(measured)
    return [_Hypothesis(fit.error, measured.says("wrong_scale", sentence, factor=round(fit.factor, 3)))]


def _unread(measured: Measured) -> str:
    """A note for a server whose base model was not read, else nothing."""
    if measured.base_error is not None:
        return ""
    return " The server's base model was not read (--base-model), so a dtype cannot be told from a small fault."
