"""One choice of a generation as it grows: ids, text, log-probabilities, and when it is over.

Used by the engine thread only. Knows no tensors: it is told which token came and its log-probabilities.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from service.engine.request import Completion, Delta, FinishReason, SamplingParams, TopTokens
from service.engine.text import Detokenizer, StopCutter


@dataclass(frozen=True)
class Ending:
    """What ends a choice besides its stop strings: one of some tokens, and a number of tokens."""

    ids: frozenset[int]
    limit: int


class Choice:
    """Choice `index` of a request."""

    def __init__(
        self, index: int, params: SamplingParams, ending: Ending, decode: Callable[[Sequence[int]], str]
    ) -> None:
        self.index = index
        self._ending = ending
        self._detokenizer = Detokenizer(decode)
        self._cutter = StopCutter(params.stop)
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
