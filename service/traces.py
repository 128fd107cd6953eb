"""What is told of a request's way: spans of requests, jobs and transactions. Here it goes nowhere.

`service.open_telemetry` sends it to a collector where a setting asks for that; whoever has something to tell does not
know which of the two it tells. No text of people is ever told, no path, no header and no secret.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext

Told = str | int | float | bool


class Traces:
    """Nobody's ears. What is `open` is the innermost span of this thread or task."""

    def request(self, method: str, headers: Mapping[str, str]) -> AbstractContextManager[None]:  # noqa: ARG002
        """Open for as long as a request is answered, within the trace that its headers name."""
        return nullcontext()

    def job(self, kind: str, id: str, asked: str | None) -> AbstractContextManager[None]:  # noqa: ARG002
        """Open for as long as a job is tried; `asked` is where it was asked for, as `here` gave it."""
        return nullcontext()

    def transaction(self, mode: str) -> AbstractContextManager[Callable[[], None] | None]:  # noqa: ARG002
        """Open for as long as a transaction takes; what it gives is told of each statement."""
        return nullcontext()

    def note(self, attributes: Mapping[str, Told], *, name: str | None = None, failed: bool = False) -> None:
        """Say more of what is open."""

    def here(self) -> str | None:
        """What is open as a W3C `traceparent`; None where nothing is."""
        return None

    def close(self, seconds: float) -> None:
        """Send what is not sent yet, for as long at most."""
