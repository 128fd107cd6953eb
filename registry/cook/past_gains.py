"""The median gain of each effort in past cooks, which answers show beside the prices of higher efforts."""

from __future__ import annotations

from statistics import median

from registry.catalogue.database import Database
from registry.catalogue.rows import Namespaces

NEWEST = 100
"""Cooks of an effort that count."""


def past_gains(database: Database, base_model: str, visible: Namespaces) -> dict[str, tuple[float, int]]:
    """(median gain in nats per token, number of cooks) of each effort over the newest visible cooks on a base model.

    A cook's gain is the NLL of the soup as selected minus that of the stored soup, on held-out passages.
    """
    with database.read() as catalogue:
        cooks = catalogue.soups.past_trials(base_model, visible, most=NEWEST)
    gains: dict[str, list[float]] = {}
    for effort, trials, difference in cooks:
        selected = next((trial["difference"] for trial in trials if trial["way"] == "selected"), None)
        if selected is not None:
            gains.setdefault(effort, []).append(selected - difference)
    return {effort: (median(values), len(values)) for effort, values in gains.items()}
