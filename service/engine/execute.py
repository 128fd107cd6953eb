"""One batch, from rows to what became of them: forward pass, next tokens, listeners.

Called by the engine thread. An exception that leaves `run` concerns the whole batch; what concerns one request
comes back beside it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from torch import Tensor

from registry.adapters import AdapterModule
from registry.base_model import LoadedBase
from registry.errors import InvalidWeights, SoupError, Unavailable
from service.engine.bank import Bank
from service.engine.draft import Draft, GenerationDraft, ScoreDraft
from service.engine.request import TopTokens
from service.engine.runner import Runner
from service.engine.sampler import choose, chosen_log_probs, log_probs, top_tokens
from service.engine.scheduler import Batch, Row, Work

Failures = list[tuple[Work, Exception]]


class Executor:
    """Runs batches into the drafts of their requests."""

    def __init__(self, runner: Runner, bank: Bank, drafts: Mapping[Work, Draft]) -> None:
        self._runner = runner
        self._bank = bank
        self._drafts = drafts
        self.counts = {"batches_total": 0, "prompt_tokens_total": 0, "generated_tokens_total": 0}

    def run(self, batch: Batch, base: LoadedBase) -> tuple[list[Row], Failures]:
        """One forward pass; gives the rows that are done, and the requests that failed by themselves."""
        self.counts["batches_total"] += 1
        handle = batch.rows[0].work.request.adapter
        adapter = None if handle is None else self._bank.get(base, handle)
        if batch.kind == "score":
            return self._score(batch, base, adapter)
        if batch.kind == "prefill":
            logits = self._prefill(batch, base, adapter)
        else:
            tokens = {row.id: self._generation(row).newest[row.index] for row in batch.rows}
            logits = self._runner.decode(batch.key, base, adapter, tokens)
        return self._advance(batch.rows, logits)

    def _score(self, batch: Batch, base: LoadedBase, adapter: AdapterModule | None) -> tuple[list[Row], Failures]:
        drafts = [self._scores(row) for row in batch.rows]
        windows = [draft.request.windows[row.index] for draft, row in zip(drafts, batch.rows, strict=True)]
        nll, vectors = self._runner.score(base, adapter, windows, bos=[draft.request.bos for draft in drafts])
        self.counts["prompt_tokens_total"] += sum(map(len, windows))
        failures: Failures = []
        for number, (row, draft, vector) in enumerate(zip(batch.rows, drafts, vectors, strict=True)):
            value = None if nll is None else nll[number]
            if math.isfinite(float(vector.sum()) if value is None else value):
                draft.take(row.index, value, vector)
            else:
                failures.append((row.work, not_numbers(row)))
        return list(batch.rows), failures

    def _prefill(self, batch: Batch, base: LoadedBase, adapter: AdapterModule | None) -> Tensor:
        drafts = {row: self._generation(row) for row in batch.rows}
        prompts = {row.id: draft.request.prompt for row, draft in drafts.items()}
        scored = {
            row.id: draft.request.params.logprobs or 0
            for row, draft in drafts.items()
            if draft.request.params.prompt_logprobs and row.index == 0
        }
        logits, scores = self._runner.prefill(batch.key, base, adapter, prompts, scored=scored)
        for row, draft in drafts.items():
            draft.prompt = scores.get(row.id, draft.prompt)
        self.counts["prompt_tokens_total"] += sum(map(len, prompts.values()))
        return logits

    def _advance(self, rows: Sequence[Row], logits: Tensor) -> tuple[list[Row], Failures]:
        """The next token of every row, from its logits."""
        finished: list[Row] = []
        failures: Failures = []
        for row, values in zip(rows, logits, strict=True):
            try:
                if self._next_token(row, values):
                    finished.append(row)
            except Exception as error:  # a listener that raises, logits that are no numbers: this request only
                failures.append((row.work, error))
        return finished, failures

    def _next_token(self, row: Row, logits: Tensor) -> bool:
        """Draw one token for a row from its logits (vocabulary,) and tell its listener; True when it is finished."""
        draft, index = self._generation(row), row.index
        choice, params = draft.choices[index], draft.request.params
        if not bool(logits.max().isfinite()):  # NaN anywhere, or an infinity that no softmax survives
            raise not_numbers(row)
        if choice.finish_reason is not None:  # no tokens were asked for
            return True
        token = choose(logits, params, draft.streams[index], choice.position)
        logprob: float | None = None
        top: TopTokens = ()
        if params.logprobs is not None:
            scores = log_probs(logits[None])
            [logprob], [top] = chosen_log_probs(scores, [token]), top_tokens(scores, params.logprobs)
        delta = choice.push(token, logprob, top)
        draft.newest[index] = token
        self.counts["generated_tokens_total"] += 1
        if draft.request.on_token is not None:
            draft.request.on_token(delta)
        return delta.finish_reason is not None

    def _generation(self, row: Row) -> GenerationDraft:
        draft = self._drafts[row.work]
        assert isinstance(draft, GenerationDraft)
        return draft

    def _scores(self, row: Row) -> ScoreDraft:
        draft = self._drafts[row.work]
        assert isinstance(draft, ScoreDraft)
        return draft


def not_numbers(row: Row) -> SoupError:
    """The error of a row whose model answers NaN or infinity."""
    base_id, digest = row.work.key
    if digest is None:
        return Unavailable(f"Base model {base_id!r} answers values that are not finite numbers.")
    return InvalidWeights(f"Base model {base_id!r} with adapter {digest} answers values that are not finite numbers.")
