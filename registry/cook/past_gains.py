"""The gain that each effort has brought in past cooks, to be told beside the price of the next one."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median
from typing import Any

from registry.catalogue.database import Database
from registry.catalogue.rows import Namespaces
from registry.spec import Effort

NEWEST = 100
"""Cooks of a base model that count."""


def past_gains(database: Database, base_model: str, visible: Namespaces) -> dict[Effort, tuple[float, int]]:
    """(median gain in nats per token, number of cooks) of each effort over the newest visible cooks on a base model.

    A cook's gain is the difference between the soup as selected and the one that was stored, on held-out passages.
    """
    with database.read() as catalogue:
        cooks = catalogue.soups.searches(base_model, visible, most=NEWEST)
    gains: dict[Effort, list[float]] = {}
    for search, verification in cooks:
        selected = _difference_as_selected(search)
        if selected is not None:
            gains.setdefault(search["effort"], []).append(selected - verification["difference"])
    return {effort: (median(values), len(values)) for effort, values in gains.items()}


def _difference_as_selected(search: Mapping[str, Any]) -> float | None:
    """The difference of the soup as selected to the base; None where it was not tried."""
    return next((trial["difference"] for trial in search["trials"] if trial["way"] == "selected"), None)
