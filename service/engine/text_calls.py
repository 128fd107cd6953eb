"""The calls of every engine; those with texts tokenise, cut into windows, and combine results.

Blocking calls are for worker threads, never for the engine's own. Scoring and embedding are one pass
(docs/explanation/methods.md#perplexity). A text is BOS + tokens in consecutive windows; every token is scored once. The
vector is the mean over the first window without the BOS.
"""

from __future__ import annotations

import itertools
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future, wait
from dataclasses import replace
from typing import Protocol

from registry.adapters.loadable import LoadableAdapter
from registry.base_model import BaseText, LoadedBase
from registry.base_model.likelihood import Window, scored_tokens, text_scores, windows
from registry.encoders.contract import EmbeddedText, beginning
from registry.errors import Busy, Cancelled, InvalidPrompt, Unavailable
from registry.spec import AdapterConfig, Passage, PassageScore
from service.engine.adapter_metrics import AdapterMetrics
from service.engine.request import Request, ScoreRequest, Scores
from service.engine.steps import Owner, Ticket
from service.engine.text_support import text_capacity

POLL_SECONDS = 0.1
"""How often `progress` is called, and a request that was not admitted is submitted again, while waiting."""
RESTART_SECONDS = 60.0
"""How long a job waits for an engine that is starting again."""

STOPPING = "The server is shutting down; try again when it is back."

WindowsDone = Callable[[int, int], None]
"""Called with `(done, total)` windows; jobs report the rest by `registry.progress.Progress`. May raise Cancelled."""


class BaseSource(Protocol):
    """Loads base models by id. Every method raises SoupErrors, and may be called from any thread."""

    def text(self, base_id: str) -> BaseText:
        """Tokenizer and shape, which stay in memory."""

    def size(self, base_id: str) -> int:
        """Bytes of the weights, known before they are loaded. Every step asks: implementations cache it."""

    def load(self, base_id: str) -> LoadedBase:
        """The base model, newly loaded and not shared."""


class EngineCalls(ABC):
    """The calls of an engine: `Engine` computes in this process, `RemoteEngine` sends requests elsewhere.

    Any thread may submit, wait and cancel. The blocking calls call `progress(done, total)` while they wait; what it
    raises cancels the request. With `patient`, for jobs, they wait for admission, and for an engine that is starting
    again, instead of raising Busy or Unavailable.
    """

    def __init__(self, source: BaseSource) -> None:
        self._source = source
        self._ended_counts = dict.fromkeys(("finished", "failed", "cancelled"), 0)
        self.adapter_metrics = AdapterMetrics()
        """Sums over the requests that have ended, by adapter."""

    def base(self, base_id: str) -> BaseText:
        """Tokenizer and shape of a base model, without its weights."""
        return self._source.text(base_id)

    @abstractmethod
    def start(self, base_ids: Sequence[str] = ()) -> Future[None]:
        """Start and load these base models; an engine starts once.

        The future ends when they are loaded, with what loading raises. Requests wait meanwhile; an engine in
        its own process refuses them until that serves.
        """

    @property
    @abstractmethod
    def preloading(self) -> bool:
        """True while a started engine loads its first base models."""

    @abstractmethod
    def stop(self, *, drain: float = 10.0, patience: float | None = None) -> bool:
        """Admit no more requests, finish those in the engine within `drain` seconds, end the others with Unavailable.

        Waits for a running step, at most `patience` seconds (None: without limit); returns False if it has not ended.
        """

    def submit(self, request: Request) -> Ticket:
        """Queue a request; raises InvalidPrompt, InvalidParameter, Busy, or Unavailable while stopping."""
        return self.submit_all([request])[0]

    def submit_all(self, requests: Sequence[Request]) -> list[Ticket]:
        """Queue all of these requests or none; raises as `submit`."""
        try:
            return self._enqueue(requests)
        except BaseException:
            for request in requests:
                if request.on_end is not None:
                    request.on_end(0, 0)
            raise

    @abstractmethod
    def _enqueue(self, requests: Sequence[Request]) -> list[Ticket]:
        """Queue all of these requests of one key, or raise and queue none."""

    @abstractmethod
    def check_admission(self, owner: Owner, *, local: bool = False) -> None:
        """Raise Busy if a key's request would not be admitted, and Unavailable while stopping.

        `local` is for requests that replicas on Ray do not compute, such as scores.
        """

    @abstractmethod
    def loaded_bases(self) -> tuple[str, ...]:
        """Ids of the base models in memory, least recently used first."""

    @abstractmethod
    def is_packed(self, base_id: str) -> bool | None:
        """Return whether the sequences of a base model run packed in one pass; None before it is loaded."""

    @abstractmethod
    def counters(self) -> dict[str, float]:
        """Figures for /metrics; those whose names end in `_total` are sums since the engine's start."""

    @abstractmethod
    def seconds_since_pass(self, base_id: str | None = None) -> float:
        """Seconds since a pass of this base model ended (None: of any, or since the engine was idle)."""

    def score(
        self,
        base_id: str,
        texts: Sequence[Passage],
        adapter: LoadableAdapter | None = None,
        *,
        progress: WindowsDone | None = None,
        patient: bool = False,
    ) -> list[PassageScore]:
        """Log-likelihood of each text, or answer; an empty one has no tokens and an NLL of 0."""
        base = self.base(base_id)
        windows_by_text = [text_windows(base, text, None if adapter is None else adapter.config) for text in texts]
        flat = list(itertools.chain.from_iterable(windows_by_text))
        nll: Sequence[float] = ()
        if flat:
            nll = self._compute(score_request(base, flat, adapter), progress, patient).nll
        return text_scores(texts, windows_by_text, nll)

    def embed(
        self,
        base_id: str,
        texts: Sequence[str],
        *,
        progress: WindowsDone | None = None,
        patient: bool = False,
        scored: bool = True,
    ) -> list[EmbeddedText]:
        """Vector of each text's first window and its NLL over all windows; raises InvalidPrompt for one without tokens.

        An encoder computes the first windows only and no NLL, and so does any base model unless `scored`; no more of a
        text is tokenised than its first window takes.
        """
        base = self.base(base_id)
        scored = scored and base.shape.kind == "causal"
        windows_by_text: list[list[Window]] = []
        firsts: list[int] = []
        flat: list[Window] = []
        for number, text in enumerate(texts):
            if progress is not None:
                progress(0, len(texts))
            windows_of_text = text_windows(base, text if scored else first_window_text(base, text))
            if not windows_of_text:
                raise empty_text_error(base, number, text)
            firsts.append(len(flat))
            windows_by_text.append(windows_of_text)
            flat += windows_of_text if scored else windows_of_text[:1]
        if not flat:
            return []
        request = replace(score_request(base, flat, None), pooled=frozenset(firsts))
        scores = self._compute(request, progress, patient)
        return [
            EmbeddedText(
                vector=scores.vectors[first],
                nll=sum(scores.nll[first : first + len(windows_of_text)]) if scored else None,
                tokens=scored_tokens(windows_of_text) if scored else 0,
                truncated=len(windows_of_text) > 1,
            )
            for first, windows_of_text in zip(firsts, windows_by_text, strict=True)
        ]

    def _compute(self, request: ScoreRequest, progress: WindowsDone | None, patient: bool) -> Scores:
        ticket = self._submit(request, progress, patient)
        try:
            while not ticket.done():
                wait([ticket], POLL_SECONDS)
                if progress is not None:
                    progress(ticket.rows_done, ticket.rows)
            scores: Scores = ticket.result()
            return scores
        except CancelledError:
            raise Cancelled("The request was cancelled.") from None
        finally:
            ticket.cancel()

    def _submit(self, request: ScoreRequest, progress: WindowsDone | None, patient: bool) -> Ticket:
        give_up_at = time.monotonic() + RESTART_SECONDS
        while True:
            was_starting = self.preloading  # it may have started by the time it has refused the request
            try:
                return self.submit(request)
            except Busy:
                if not patient:
                    raise
            except Unavailable:
                if not (patient and (was_starting or self.preloading)) or time.monotonic() > give_up_at:
                    raise
            time.sleep(POLL_SECONDS)
            if progress is not None:
                progress(0, 1)


def has_bos(base: BaseText) -> bool:
    """Return True if texts of a base model start with a BOS."""
    return base.entry.bos and base.bos_id is not None


def score_request(base: BaseText, windows: Sequence[Window], adapter: LoadableAdapter | None) -> ScoreRequest:
    """The request to score windows of texts of a base model."""
    ids = tuple(window.ids for window in windows)
    starts = tuple(window.start for window in windows)
    return ScoreRequest(base.entry.id, ids, adapter, bos=has_bos(base), starts=starts)


def text_windows(base: BaseText, passage: Passage, config: AdapterConfig | None = None) -> list[Window]:
    """Windows of token ids for an adapter of `config`, or for the base model alone; none for an empty text."""
    (ids, prompt), closing = base.tokenize_passage(passage), closing_tokens(base)
    bos_id = base.bos_id if has_bos(base) else None
    context = text_capacity(base.shape, config) - len(closing)
    cut = windows(ids, context=context, bos_id=bos_id, prompt=prompt)
    return [window._replace(ids=(*window.ids, *closing)) for window in cut]


def first_window_text(base: BaseText, text: str) -> str:
    """The start of a text from which its first window, and whether there are others, can be computed."""
    return beginning(text, lambda start: len(base.tokenize(start, bos=False)), tokens=text_capacity(base.shape, None))


def empty_text_error(base: BaseText, number: int, text: str) -> InvalidPrompt:
    """The error for a text without tokens: it is empty, or only the token that starts every text."""
    start = "CLS" if base.shape.kind == "encoder" else "BOS"
    reason = f"is empty but for the {start}" if base.tokenize(text, bos=False) else "is empty"
    return InvalidPrompt(f"Text {number} {reason}: there is nothing to embed.", param=f"input.{number}")


def closing_tokens(base: BaseText) -> tuple[int, ...]:
    """Tokens that end every text: an encoder's SEP, as in its training; none for language models."""
    return (base.eos_id,) if base.shape.kind == "encoder" and base.eos_id is not None else ()
