"""Probes: the most likely next tokens after fixed short texts, by which `soup doctor` recognises a served model."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from registry.spec.frozen import Frozen, Words

PROBE_TEXTS = 32
"""Texts of a probe, the same for all adapters of a base model.

Stored probes have as many, and no diagnosis is possible with another number: a migration that changes it must delete
them. They are taken again when they are next needed.
"""
SCALED_TEXTS = 4
"""Of these, the first ones are also read with the adapter at other scales."""
STORED_TOKENS = 20
"""Most likely next tokens that are stored for each text."""
SERVER_TOKENS = 5
"""Most likely next tokens that a server is asked for: as many as every OpenAI-compatible server gives."""

NextTokens = Annotated[
    dict[Annotated[Words, Field(max_length=1000)], Annotated[float, Field(le=1e-3, ge=-1e4)]],
    Field(min_length=1, max_length=STORED_TOKENS),
]
"""The most likely next tokens after a text, by their text, with their natural log-probabilities."""
Readings = tuple[NextTokens, ...]
"""The next tokens after each text of a probe, or after its first texts."""


class BaseProbe(Frozen):
    """The texts of a base model's probe, and the readings of the base model alone.

    Of the first texts also without a BOS and with two, empty for a base model whose texts begin with none.
    """

    texts: tuple[str, ...]
    readings: Readings
    without_bos: Readings = ()
    with_two_bos: Readings = ()


class AdapterProbe(Frozen):
    """The readings of an adapter, and those of its first texts with its update at each of `scales`."""

    readings: Readings
    scales: tuple[float, ...] = ()
    scaled: tuple[Readings, ...] = ()


class ServerReadings(Frozen):
    """A server's answers to a probe: the readings of a model, and of its base model if the server has it."""

    model: Annotated[Readings, Field(min_length=PROBE_TEXTS, max_length=PROBE_TEXTS)]
    base: Annotated[Readings, Field(min_length=PROBE_TEXTS, max_length=PROBE_TEXTS)] | None = None


Verdict = Literal["same", "other_dtype", "base_only", "other_adapter", "wrong_scale", "broken"]


class Diagnosis(Frozen):
    """The diagnosis of a server's model: the adapter itself, or another model."""

    verdict: Verdict
    sentence: str
    error: float
    """Root mean square of the differences in log-probability to the adapter's probe, in nats."""
    effect: float
    """The same between the adapter's probe and its base model's: how much the adapter changes."""
    base_error: float | None
    """The same between the server's base model and the stored one; null if the server's was not read."""
    factor: float | None = None
    """The factor that its update is multiplied by, where the scale is wrong."""
    served: str | None = None
    """The served adapter, if it is not the requested one."""
