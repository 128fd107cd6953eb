"""What a step has room for: adapters that run together, tokens beside the newest ones. Knows no tensors."""

from __future__ import annotations

from collections.abc import Iterable

from service.engine.steps import Segment, Sequence, Work


class Claims:
    """The adapters that run together, and the bytes that they take."""

    def __init__(self, limit: int | None, running: Iterable[Sequence]) -> None:
        self.limit = limit
        self._sizes: dict[str, int] = {}
        for work in dict.fromkeys(one.work for one in running):
            if work.request.adapter is not None:
                self._sizes[work.request.adapter.digest] = work.request.adapter.size_bytes

    def add(self, work: Work) -> bool:
        """Whether a request's adapter is among them, or has room beside them; it is then."""
        adapter = work.request.adapter
        if adapter is None or adapter.digest in self._sizes:
            return True
        if self._sizes and self.limit is not None and sum(self._sizes.values()) + adapter.size_bytes > self.limit:
            return False
        self._sizes[adapter.digest] = adapter.size_bytes
        return True


class Room:
    """What a step takes: the newest tokens of streams, and as many tokens beside them as are `left`."""

    def __init__(self) -> None:
        self.newest: list[Segment] = []
        self.beside: list[Segment] = []
        self.left = 0
        """Tokens that it may still take."""
        self.streams_elsewhere = False
        """Whether streams of other base models wait for its end."""

    @property
    def alone(self) -> bool:
        """Whether no stream waits for its end."""
        return not self.newest and not self.streams_elsewhere

    @property
    def segments(self) -> tuple[Segment, ...]:
        """All of it."""
        return (*self.newest, *self.beside)

    def take(self, segment: Segment) -> None:
        """Put a segment into it, beside the newest tokens."""
        self.beside.append(segment)
        self.left -= segment.length

    def give_back(self, sequence: Sequence) -> None:
        """Take a sequence's segment out again: it has been sent away."""
        self.left += sum(one.length for one in self.beside if one.sequence is sequence)
        self.newest = [one for one in self.newest if one.sequence is not sequence]
        self.beside = [one for one in self.beside if one.sequence is not sequence]
