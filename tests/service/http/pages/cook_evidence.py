"""Evidence of cooks, as far as a report shows it: made by hand, so that a report of each kind is quick to have."""

from __future__ import annotations

from typing import Any

from registry.spec import Evidence

DIGESTS = {name: "sha256:" + digit * 64 for name, digit in (("law", "1"), ("food", "2"), ("news", "3"))}


def candidate(name: str, score: float, coefficient: float | None) -> dict[str, Any]:
    about = {"ref": f"acme/{name}@1", "digest": DIGESTS[name], "domain": name}
    return {**about, "score": score, "standard_error": 0.004, "coefficient": coefficient}


def trial(way: str, difference: float) -> dict[str, Any]:
    return {"way": way, "members": 2, "width": 8, "difference": difference, "standard_error": 0.005}


def evidence(*, difference: float = -0.03, hostile: str = "too far") -> Evidence:
    """Of a search that weighed three adapters and took two, with a control."""
    selected = {"ref": "acme/law@1", "digest": DIGESTS["law"], "domain": "law", "weight": "1", "score": 0.8}
    left_out = {
        "ref": "acme/poems@1",
        "digest": "sha256:" + "4" * 64,
        "domain": hostile,
        "reason": hostile,
        "score": 0.01,
    }
    return Evidence.model_validate(
        {
            "selector": "sel-0000000000000000",
            "fitted_at": "2030-01-31T10:00:00Z",
            "sample": {"digest": "sha256:" + "9" * 64, "received": 30, "kept": 30, "notes": [hostile]},
            "selection": {
                "selected": [selected],
                "left_out": [left_out],
                "abstained": False,
                "reason": "1 of 4 domains passes.",
                "units": 24,
                "novelty": 71.0,
                "warnings": [hostile],
                "more_left_out": {"2 better-ranked ones are taken.": 9},
            },
            "verification": {
                "base_nll": 3.0,
                "soup_nll": 3.0 + difference,
                "difference": difference,
                "standard_error": 0.005,
                "interval": [difference - 0.01, difference + 0.01],
                "passages": 6,
                "tokens": 900,
                "helps": difference < 0,
                "held_out": True,
                "ways": 2,
                "margin": 2.2,
            },
            "search": {
                "effort": "quick",
                "more_left_out": {hostile: 7},
                "decided_on": 24,
                "held_out": 6,
                "tokens": 4000,
                "seconds": 3.2,
                "candidates": [
                    candidate("law", 0.05, 0.4),
                    candidate("food", 0.02, 0.1),
                    candidate("news", -0.01, None),
                ],
                "trials": [trial("weighed", difference), trial("tuned", difference), trial("selected", -0.001)],
                "single": {
                    "ref": "acme/law@1",
                    "digest": DIGESTS["law"],
                    "difference": -0.02,
                    "standard_error": 0.006,
                    "ahead": difference + 0.02,
                    "ahead_standard_error": 0.004,
                },
                "noise": {
                    "difference": -0.002,
                    "standard_error": 0.001,
                    "ahead": -0.028,
                    "ahead_standard_error": 0.004,
                },
            },
        }
    )
