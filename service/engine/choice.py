"""One choice of a generation as it grows: ids, text, log-probabilities, and when it is over.

Used by the engine thread only. Knows no tensors: it is told which token came and its log-probabilities. Token borders
fall anywhere, also inside of a UTF-8 character or of a stop string, so text is held back until it is certain.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from service.engine.request import Completion, Delta, FinishReason, SamplingParams, TopTokens

REPLACEMENT = "\ufffd"
PARTIAL = 3
"""An incomplete UTF-8 character is at most this many bytes, so at most this many replacement characters."""


class Detokenizer:
    """Text of a growing list of ids. What has been given never changes; an incomplete character is held back.

    `decode` turns ids into text. Only a window of ids is decoded each time: it starts one settled stretch back,
    because some tokenizers render a token differently at the start of a text.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self._decode = decode
        self._window: list[int] = []
        self._settled = 0  # ids of the window whose text is complete
        self._given = 0  # characters of the window's text that were given

    def push(self, token_id: int) -> str:
        """The text that became certain with this id."""
        self._window.append(token_id)
        text = self._decode(self._window)
        tail = min(len(text) - len(text.rstrip(REPLACEMENT)), PARTIAL)
        certain = text[: len(text) - tail]
        new = certain[self._given :]
        self._given = max(self._given, len(certain))
        if tail == 0:
            self._window = self._window[self._settled :]
            self._settled = len(self._window)
            self._given = len(self._decode(self._window))
        return new


class StopChecker:
    """Cuts a stream of text before the first stop string in it; what may be the start of one is held back.

    "First" is the one that is complete first (of those the longest), so the cut does not depend on how the text
    came in pieces.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.stopped = False

    def push(self, text: str) -> str:
        """The text that may be shown; once `stopped`, nothing more."""
        if self.stopped or not self._stops:
            return "" if self.stopped else text
        self._held += text
        found = [(at + len(stop), at) for stop in self._stops if (at := self._held.find(stop)) >= 0]
        if found:
            self.stopped = True
            shown, self._held = self._held[: min(found)[1]], ""
            return shown
        keep = self._partial()
        shown, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        return shown

    def flush(self) -> str:
        """What was held back and turned out to be no stop string."""
        shown, self._held = self._held, ""
        return shown

    def _partial(self) -> int:
        """Length of the longest end of the held text that starts a stop string."""
        longest = min(len(self._held), max(map(len, self._stops)) - 1)
        return next(
            (n for n in range(longest, 0, -1) if any(stop.startswith(self._held[-n:]) for stop in self._stops)), 0
        )


@dataclass(frozen=True)
class StopCondition:
    """What ends a choice besides its stop strings: one of some tokens, and a number of tokens."""

    ids: frozenset[int]
    limit: int


class Choice:
    """Choice `index` of a request."""

    def __init__(
        self, index: int, params: SamplingParams, ending: StopCondition, decode: Callable[[Sequence[int]], str]
    ) -> None:
        self.index = index
        self._ending = ending
        self._detokenizer = Detokenizer(decode)
        self._cutter = StopChecker(params.stop)
        self._ids: list[int] = []
        self._offsets: list[int] = []
        self._log_probs: list[float] = []
        self._tops: list[TopTokens] = []
        self._shown: list[str] = []
        self._decoded = 0  # characters decoded, shown or not
        self.finish_reason: FinishReason | None = "length" if ending.limit == 0 else None

    @property
    def position(self) -> int:
        """Number of tokens so far: the position of the next one."""
        return len(self._ids)

    def push(self, token_id: int, logprob: float | None, top: TopTokens, *, complete: bool = False) -> Delta:
        """Take the next token; `finish_reason` is set when it is the last, as it is where a grammar is `complete`."""
        offset, shown = self._decoded, ""
        self._ids.append(token_id)
        if logprob is not None:
            self._log_probs.append(logprob)
            self._tops.append(top)
        if token_id in self._ending.ids:
            self.finish_reason = "stop"
        else:
            text = self._detokenizer.push(token_id)
            self._decoded += len(text)
            shown = self._cutter.push(text)
            if self._cutter.stopped or complete:
                self.finish_reason = "stop"
            elif self.position >= self._ending.limit:
                self.finish_reason = "length"
        if self.finish_reason is not None:
            shown += self._cutter.flush()
        self._shown.append(shown)
        self._offsets.append(offset)
        return Delta(self.index, token_id, shown, offset, logprob, top, self.finish_reason)

    def completion(self) -> Completion:
        """The finished choice. Offsets beyond the cut of a stop string are the text's end."""
        assert self.finish_reason is not None, "asked of a choice that still grows"
        text = "".join(self._shown)
        return Completion(
            token_ids=tuple(self._ids),
            text=text,
            finish_reason=self.finish_reason,
            token_logprobs=tuple(self._log_probs),
            top_logprobs=tuple(self._tops),
            text_offsets=tuple(min(offset, len(text)) for offset in self._offsets),
        )
