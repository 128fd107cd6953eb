"""What became of the jobs that ran in this process, for /metrics: how often each end, and the seconds they took.

The runner counts; any thread may read. Labels are kinds of jobs and codes of errors, both ours and few.
"""

from __future__ import annotations

import copy
import threading
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Literal

Outcome = Literal["succeeded", "failed", "retried", "cancelled"]


@dataclass(frozen=True)
class JobFigures:
    """Tries of jobs: their ends by kind and outcome, the codes of their errors, their number and seconds by kind."""

    ends: Counter[tuple[str, Outcome]] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    tries: Counter[str] = field(default_factory=Counter)
    seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))


class JobTally:
    """The figures of one process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._figures = JobFigures()

    def ended(self, kind: str, outcome: Outcome, code: str | None = None) -> None:
        """A try of a job came to an end, with an error of this code where there is one."""
        with self._lock:
            self._figures.ends[kind, outcome] += 1
            if code is not None:
                self._figures.errors[code] += 1

    def took(self, kind: str, seconds: float) -> None:
        """A try of a job took so long, whatever came of it."""
        with self._lock:
            self._figures.tries[kind] += 1
            self._figures.seconds[kind] += seconds

    def figures(self) -> JobFigures:
        """The figures as they stand."""
        with self._lock:
            return copy.deepcopy(self._figures)
