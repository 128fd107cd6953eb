"""What became of the jobs that ran in this process, for /metrics: how often each end, and the seconds they took.

The runner counts; any thread may read. Labels are kinds of jobs and codes of errors, both ours and few.
"""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Literal

Outcome = Literal["succeeded", "failed", "retried", "cancelled"]


@dataclass
class JobFigures:
    """Tries of jobs of one kind: their ends, by outcome and error code (empty for none), and their seconds."""

    ends: Counter[tuple[Outcome, str]] = field(default_factory=Counter)
    tries: int = 0
    seconds: float = 0.0


class JobTally:
    """The figures of every kind."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kinds: defaultdict[str, JobFigures] = defaultdict(JobFigures)

    def ended(self, kind: str, outcome: Outcome, code: str = "") -> None:
        """A try of a job came to an end."""
        with self._lock:
            self._kinds[kind].ends[outcome, code] += 1

    def took(self, kind: str, seconds: float) -> None:
        """A try of a job took so long, whatever came of it."""
        with self._lock:
            self._kinds[kind].tries += 1
            self._kinds[kind].seconds += seconds

    def figures(self) -> dict[str, JobFigures]:
        """The figures by kind, as they stand."""
        with self._lock:
            return {kind: JobFigures(Counter(one.ends), one.tries, one.seconds) for kind, one in self._kinds.items()}
