"""What verbs and routes call with texts: tokenised here, cut into windows, scored by the engine, put together again.

These calls block, so they belong into worker threads, never into the engine's own. Scoring and embedding are one
pass (docs/explanation/methods.md#perplexity): a text is BOS + tokens in consecutive windows, the vector is the
mean over the first window without the BOS, and every token is scored once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, wait
from typing import Any

from registry.adapters.loadable import LoadableAdapter
from registry.base_model import BaseText
from registry.base_model.likelihood import scored_tokens, text_scores, windows
from registry.encoders.contract import EmbeddedText, beginning
from registry.errors import Busy, Cancelled, InvalidPrompt
from registry.spec import AdapterConfig, PassageScore
from service.engine.request import GenerateRequest, Generation, Request, ScoreRequest, Scores
from service.engine.steps import Ticket
from service.engine.text_support import text_capacity

POLL_SECONDS = 0.1
"""How often a waiting caller is asked whether to go on."""

ShouldStop = Callable[[], bool]
WindowsDone = Callable[[int, int], None]
"""`(done, total)` windows; what a verb is told besides is `registry.progress.Progress`."""
Windows = list[tuple[int, ...]]


class TextCalls(ABC):
    """The engine's blocking calls.

    `should_stop` is asked while waiting, and Cancelled is raised when it says so; `progress(done, total)` counts
    windows and may raise. `patient` waits for a place in the queue instead of raising Busy: for jobs.
    """

    @abstractmethod
    def base(self, base_id: str) -> BaseText:
        """Tokenizer and shape of the base model of that id."""

    @abstractmethod
    def submit(self, request: Request) -> Ticket:
        """Queue one request."""

    @abstractmethod
    def wait_for_place(self, seconds: float) -> None:
        """Return when the queue has a place, or after `seconds`."""

    def tokenize(self, base_id: str, text: str) -> tuple[int, ...]:
        """Token ids of a text prompt, with the base's BOS in front."""
        return tuple(self.base(base_id).tokenize(text))

    def score(
        self,
        base_id: str,
        texts: Sequence[str],
        adapter: LoadableAdapter | None = None,
        *,
        should_stop: ShouldStop | None = None,
        progress: WindowsDone | None = None,
        patient: bool = False,
    ) -> list[PassageScore]:
        """Log-likelihood of each text; an empty one has no tokens and an NLL of 0."""
        base = self.base(base_id)
        cut = [text_windows(base, text, None if adapter is None else adapter.config) for text in texts]
        flat = tuple(window for part in cut for window in part)
        nll: Sequence[float] = ()
        if flat:
            request = ScoreRequest(base_id, flat, adapter, bos=has_bos(base))
            found: Scores = self._answer(request, should_stop, progress, patient)
            nll = found.nll
        return text_scores(texts, cut, nll)

    def embed(
        self,
        base_id: str,
        texts: Sequence[str],
        *,
        should_stop: ShouldStop | None = None,
        progress: WindowsDone | None = None,
        patient: bool = False,
        scored: bool = True,
    ) -> list[EmbeddedText]:
        """Vector of each text's first window and its NLL over all windows; raises InvalidPrompt for one without tokens.

        An encoder runs the first windows only, and has no NLL; so does any base where it is not to be `scored`, and
        then no more of a text is tokenised than its first window takes.
        """
        base = self.base(base_id)
        speaks = scored and base.shape.kind == "causal"
        cut: list[Windows] = []
        starts: list[int] = []
        flat: Windows = []
        for number, text in enumerate(texts):
            if progress is not None:
                progress(0, len(texts))
            _check(should_stop)
            part = text_windows(base, text if speaks else first_window_text(base, text))
            if not part:
                raise empty_text_error(base, number, text)
            starts.append(len(flat))
            cut.append(part)
            flat += part if speaks else part[:1]
        if not flat:
            return []
        request = ScoreRequest(base_id, tuple(flat), pooled=frozenset(starts), bos=has_bos(base))
        found: Scores = self._answer(request, should_stop, progress, patient)
        return [
            EmbeddedText(
                vector=found.vectors[start],
                nll=sum(found.nll[start : start + len(part)]) if speaks else None,
                tokens=scored_tokens(part) if speaks else 0,
                truncated=len(part) > 1,
            )
            for start, part in zip(starts, cut, strict=True)
        ]

    def generate(self, request: GenerateRequest, *, should_stop: ShouldStop | None = None) -> Generation:
        """Submit and wait; raises what the request ends with."""
        found: Generation = self._answer(request, should_stop, None, False)
        return found

    def _answer(
        self, request: Request, should_stop: ShouldStop | None, progress: WindowsDone | None, patient: bool
    ) -> Any:
        ticket = self._place(request, should_stop, progress, patient)
        try:
            while not ticket.done():
                wait([ticket], POLL_SECONDS)
                if progress is not None:
                    progress(ticket.rows_done, ticket.rows)
                _check(should_stop)
            return ticket.result()
        except CancelledError:
            raise Cancelled("The request was cancelled.") from None
        finally:
            ticket.cancel()

    def _place(
        self, request: Request, should_stop: ShouldStop | None, progress: WindowsDone | None, patient: bool
    ) -> Ticket:
        while True:
            try:
                return self.submit(request)
            except Busy:
                if not patient:
                    raise
            self.wait_for_place(POLL_SECONDS)
            if progress is not None:
                progress(0, 1)
            _check(should_stop)


def _check(should_stop: ShouldStop | None) -> None:
    if should_stop is not None and should_stop():
        raise Cancelled("The request was cancelled.")


def has_bos(base: BaseText) -> bool:
    """Whether this base's texts start with a BOS."""
    return base.entry.bos and base.bos_id is not None


def text_windows(base: BaseText, text: str, config: AdapterConfig | None = None) -> Windows:
    """A text's windows of token ids for an adapter of `config`, or for the base alone; none for an empty text."""
    ids, end = base.tokenize(text, bos=False), closing_tokens(base)
    bos_id = base.bos_id if has_bos(base) else None
    context = text_capacity(base.shape, config) - len(end)
    return [(*window, *end) for window in windows(ids, context=context, bos_id=bos_id)]


def first_window_text(base: BaseText, text: str) -> str:
    """The start of a text that decides its first window, and whether there are others."""
    return beginning(text, lambda start: len(base.tokenize(start, bos=False)), tokens=text_capacity(base.shape, None))


def empty_text_error(base: BaseText, number: int, text: str) -> InvalidPrompt:
    """The error for a text without a token of its own: it is empty, or nothing but what stands before every text."""
    front = "CLS" if base.shape.kind == "encoder" else "BOS"
    why = f"holds nothing but the {front}" if base.tokenize(text, bos=False) else "is empty"
    return InvalidPrompt(f"Text {number} {why}: there is nothing to embed.", param=f"input.{number}")


def closing_tokens(base: BaseText) -> tuple[int, ...]:
    """What stands after every text: an encoder's SEP, as it was trained; nothing where text goes on."""
    return (base.eos_id,) if base.shape.kind == "encoder" and base.eos_id is not None else ()
