"""One choice of a generation: its tokens so far, their text and log-probabilities, and why it finished.

Used by the engine's thread only. Knows no tensors. Tokens may end inside of a UTF-8 character or of a stop string, so
text is buffered until it is certain.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from service.engine.request import Completion, Delta, FinishReason, SamplingParams, TopTokens

REPLACEMENT = "\ufffd"
PARTIAL = 3
"""An incomplete UTF-8 character is at most this many bytes, so at most this many replacement characters."""
PRECEDING = 8
"""Last ids of a prompt that are decoded with those that follow."""


class Detokenizer:
    """Decodes a growing list of ids incrementally; returned text never changes, incomplete characters are buffered.

    `decode` turns ids into text. Only a window of ids is decoded each time. It begins with ids whose text is already
    complete, because some tokenizers decode a token differently at the start of a text: at first the end of the
    `prompt`, from its first to its last complete character.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str], prompt: Sequence[int] = ()) -> None:
        self._decode = decode
        ends = (list(prompt[start:]) for start in range(max(0, len(prompt) - PRECEDING), len(prompt) + 1))
        self._window = next(ids for ids in ends if REPLACEMENT not in decode(ids))
        self._complete = len(self._window)  # ids of the window whose text is complete
        self._returned = decode(self._window)  # the part of the window's text that was returned

    def push(self, token_id: int) -> str:
        """Add an id; return the text that became certain with it."""
        self._window.append(token_id)
        text = self._decode(self._window)
        tail = min(len(text) - len(text.rstrip(REPLACEMENT)), PARTIAL)
        if not text.startswith(self._returned):  # with byte tokens, an incomplete character hides those before it
            if tail and len(self._window) - self._complete <= PARTIAL:
                return ""
            # it is invalid, not incomplete: decode it without them
            self._window, self._complete, self._returned = self._window[self._complete :], 0, ""
            text = self._decode(self._window)
        new = text[len(self._returned) : len(text) - tail]
        self._returned += new
        if tail == 0:
            self._window = self._window[self._complete :]
            self._complete = len(self._window)
            self._returned = self._decode(self._window)
        return new


class StopChecker:
    """Cuts a stream of text before the first stop string; text that may begin one is buffered.

    The first is the one that ends first (of several, the longest), so the cut does not depend on how the text is
    divided into tokens.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._buffer = ""
        self.stopped = False

    def push(self, text: str) -> str:
        """Add text; return what is certain to precede a stop string. Nothing more once `stopped`."""
        if self.stopped or not self._stops:
            return "" if self.stopped else text
        self._buffer += text
        matches = [(start + len(stop), start) for stop in self._stops if (start := self._buffer.find(stop)) >= 0]
        if matches:
            self.stopped = True
            text, self._buffer = self._buffer[: min(matches)[1]], ""
            return text
        certain = len(self._buffer) - self._partial_match()
        text, self._buffer = self._buffer[:certain], self._buffer[certain:]
        return text

    def flush(self) -> str:
        """The buffered text, which turned out to begin no stop string."""
        text, self._buffer = self._buffer, ""
        return text

    def _partial_match(self) -> int:
        """Length of the longest end of the buffer that begins a stop string."""
        longest = min(len(self._buffer), max(map(len, self._stops)) - 1)
        return next(
            (n for n in range(longest, 0, -1) if any(stop.startswith(self._buffer[-n:]) for stop in self._stops)), 0
        )


@dataclass(frozen=True)
class StopCondition:
    """Ends a choice besides its stop strings: one of the tokens `ids`, or `max_tokens` of any kind."""

    ids: frozenset[int]
    max_tokens: int


class Choice:
    """Choice `index` of a request."""

    def __init__(
        self,
        index: int,
        params: SamplingParams,
        stop: StopCondition,
        decode: Callable[[Sequence[int]], str],
        *,
        prompt: Sequence[int] = (),
    ) -> None:
        self.index = index
        self._stop = stop
        self._detokenizer = Detokenizer(decode, prompt)
        self._stop_checker = StopChecker(params.stop)
        self._ids: list[int] = []
        self._offsets: list[int] = []
        self._log_probs: list[float] = []
        self._top_tokens: list[TopTokens] = []
        self._texts: list[str] = []
        self._decoded = 0  # characters, with those behind a stop string
        self.finish_reason: FinishReason | None = "length" if stop.max_tokens == 0 else None

    @property
    def position(self) -> int:
        """Number of tokens so far: the position of the next one."""
        return len(self._ids)

    def push(self, token_id: int, logprob: float | None, top: TopTokens, *, complete: bool = False) -> Delta:
        """Add the next token and set `finish_reason` if it is the last; `complete` says that the grammar is."""
        offset, text = self._decoded, ""
        self._ids.append(token_id)
        if logprob is not None:
            self._log_probs.append(logprob)
            self._top_tokens.append(top)
        if token_id in self._stop.ids:
            self.finish_reason = "stop"
        else:
            decoded = self._detokenizer.push(token_id)
            self._decoded += len(decoded)
            text = self._stop_checker.push(decoded)
            if self._stop_checker.stopped or complete:
                self.finish_reason = "stop"
            elif self.position >= self._stop.max_tokens:
                self.finish_reason = "length"
        if self.finish_reason is not None:
            text += self._stop_checker.flush()
        self._texts.append(text)
        self._offsets.append(offset)
        return Delta(self.index, token_id, text, offset, logprob, top, self.finish_reason)

    def completion(self) -> Completion:
        """The finished choice. Offsets of tokens behind the cut of a stop string are the text's end."""
        assert self.finish_reason is not None, "the choice is not finished"
        text = "".join(self._texts)
        return Completion(
            token_ids=tuple(self._ids),
            text=text,
            finish_reason=self.finish_reason,
            token_logprobs=tuple(self._log_probs),
            top_logprobs=tuple(self._top_tokens),
            text_offsets=tuple(min(offset, len(text)) for offset in self._offsets),
        )
