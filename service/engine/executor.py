"""One step, from segments to what became of them: adapters, the forward pass, next tokens, listeners.

Called by the engine thread. What concerns one request comes back beside what is done; a pass that fails is tried again
request by request, so that nobody ends with another's error.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from registry.adapters.batched import ReadyAdapter
from registry.errors import InvalidWeights, SoupError, Unavailable
from service.engine.adapter_cache import AdapterCache
from service.engine.adapter_metrics import AdapterMetrics
from service.engine.draft import Draft, GenerationDraft, ScoreDraft
from service.engine.request import GenerateRequest, TopTokens
from service.engine.runner import ForwardResult, ForwardTask, Runner
from service.engine.sampler import Draw, chosen_log_probs, log_probs, sample_tokens, top_tokens
from service.engine.steps import CachedPrefix, Segment, Sequence, SequenceGroup, Step

log = logging.getLogger(__name__)

Failures = list[tuple[SequenceGroup, Exception]]


class Executor:
    """Runs steps into the drafts of their requests."""

    def __init__(self, bank: AdapterCache, drafts: Mapping[SequenceGroup, Draft], tally: AdapterMetrics) -> None:
        self._bank = bank
        self._drafts = drafts
        self._tally = tally
        names = ("batches_total", "prompt_tokens_total", "prompt_tokens_reused_total", "generated_tokens_total")
        self.counts = dict.fromkeys(names, 0)

    def run(self, step: Step, runner: Runner, computed: Callable[[Step], None]) -> tuple[list[Sequence], Failures]:
        """One forward pass; gives the sequences that are done, and the requests that failed by themselves.

        `computed` is told of each part of the step whose keys and values are kept now, before its tokens are drawn.
        """
        adapters, failures = self._adapters(step, runner)
        step = step.without({group for group, _ in failures})
        done: list[Sequence] = []
        for part, found in self._passes(step, runner, adapters, failures):
            computed(part)
            tokens = self._next_tokens(part, found)
            for segment, one in zip(part.segments, found, strict=True):
                try:
                    if self._take(segment, one, tokens.get(segment.sequence)):
                        done.append(segment.sequence)
                except Exception as error:  # a listener that raises, logits that are no numbers: this request only
                    failures.append((segment.sequence.group, error))
        return done, failures + _step_told(step.groups)

    def _adapters(self, step: Step, runner: Runner) -> tuple[dict[str, ReadyAdapter], Failures]:
        """The adapters of a step, by digest, and the requests whose adapter cannot be loaded."""
        pinned = {group.key[1] for group in step.groups if group.key[1] is not None}
        found: dict[str, ReadyAdapter] = {}
        wrong: dict[str, Exception] = {}
        for group in step.groups:
            handle, draft = group.request.adapter, self._drafts[group]
            first = draft.begin_part()
            if handle is None:
                continue
            self._bank.hits += first and self._bank.holds(runner, handle)
            if handle.digest in found or handle.digest in wrong:
                continue
            try:
                found[handle.digest] = self._bank.get(runner, handle, pinned=pinned)
            except Exception as error:
                wrong[handle.digest] = error
        return found, [(group, wrong[group.key[1]]) for group in step.groups if group.key[1] in wrong]

    def _passes(
        self, step: Step, runner: Runner, adapters: Mapping[str, ReadyAdapter], failures: Failures
    ) -> list[tuple[Step, list[ForwardResult]]]:
        """What came of the segments of a step: of one pass, or where that fails, of one for each request."""
        if not step.segments:
            return []
        self.counts["batches_total"] += 1
        try:
            return [(step, runner.run([self._task(segment, adapters) for segment in step.segments]))]
        except Exception as error:
            if len(step.groups) == 1:
                failures.append((step.groups[0], error))
                return []
            log.warning("a pass of %d requests failed (%s); they are run one by one", len(step.groups), error)
        found = []
        for group in step.groups:
            found += self._passes(step.of(group), runner, adapters, failures)
        return found

    def _task(self, segment: Segment, adapters: Mapping[str, ReadyAdapter]) -> ForwardTask:
        sequence, group = segment.sequence, segment.sequence.group
        end = segment.start + segment.length
        draft = self._drafts[group]
        scored = pooled = False
        alternatives: int | None = None
        if isinstance(draft, ScoreDraft):
            scored, pooled = draft.speaks, sequence.index in draft.request.pooled or not draft.speaks
        elif draft.request.params.prompt_logprobs and sequence.index == 0 and segment.start < sequence.prompt - 1:
            alternatives = draft.request.params.logprobs or 0
        digest = group.key[1]
        return ForwardTask(
            ids=sequence.ids[segment.start : end],
            start=segment.start,
            adapter=None if digest is None else adapters[digest],
            owner=sequence if segment.kept else None,
            copied=segment.copied,
            follows=sequence.ids[end] if end < len(sequence.ids) else None,
            logits=segment.wants == "next",
            nll=scored,
            alternatives=alternatives,
            pooled=pooled,
            unpooled=int(pooled and isinstance(draft, ScoreDraft) and draft.request.bos and segment.start == 0),
            reserve=max(len(sequence.ids), end),
        )

    # --- what came of it ------------------------------------------------------------------------

    def _next_tokens(self, part: Step, found: list[ForwardResult]) -> dict[Sequence, int | None]:
        """The next token of each sequence that has logits now, drawn together; None where these are no numbers."""
        rows = [(segment.sequence, one.logits) for segment, one in zip(part.segments, found, strict=True)]
        asked = [(sequence, logits) for sequence, logits in rows if logits is not None]
        if not asked:
            return {}
        tokens = sample_tokens(
            torch.stack([logits for _, logits in asked]), [self._draw(sequence) for sequence, _ in asked]
        )
        return dict(zip((sequence for sequence, _ in asked), tokens, strict=True))

    def _draw(self, sequence: Sequence) -> Draw:
        draft = self._drafts[sequence.group]
        assert isinstance(draft, GenerationDraft), "only a generation wants a next token"
        index = sequence.index
        choice, stream, walk = draft.choices[index], draft.streams[index], draft.walks[index]
        allowed = None if walk is None else walk.allowed
        return Draw(draft.request.params, stream, choice.position, sequence.ids, sequence.prompt, allowed)

    def _take(self, segment: Segment, found: ForwardResult, token: int | None) -> bool:
        """Put what came of a segment, and the `token` drawn behind it, into its draft; True where it is done."""
        sequence = segment.sequence
        draft = self._drafts[sequence.group]
        if isinstance(draft, ScoreDraft):
            self.counts["prompt_tokens_total"] += segment.length
            self._tally.tokens(sequence.group.key[1], scored=segment.length)
            return self._scored(draft, segment, found)
        if segment.start < sequence.prompt:
            self.counts["prompt_tokens_total"] += segment.length
        if segment.start == 0 or segment.copied is not None:
            reused = segment.start if isinstance(segment.copied, CachedPrefix) else 0
            self.counts["prompt_tokens_reused_total"] += draft.begin(reused)
        if found.chosen:
            draft.take_prompt(segment.start, found.chosen, found.tops, sequence.prompt)
        return found.logits is not None and self._next_token(sequence, draft, found.logits, token)

    def _scored(self, draft: ScoreDraft, segment: Segment, found: ForwardResult) -> bool:
        sequence = segment.sequence
        value = found.nll + (0.0 if found.pooled is None else float(found.pooled.sum()))
        if not math.isfinite(value):
            raise not_finite_error(sequence.group)
        draft.take(sequence.index, found.nll, found.pooled, found.tokens, first=segment.start == 0)
        return segment.start + segment.length == len(sequence.ids)

    def _next_token(self, sequence: Sequence, draft: GenerationDraft, logits: Tensor, token: int | None) -> bool:
        """Take the token drawn from logits (vocabulary,) and tell the listener; True when the choice is finished."""
        choice, params = draft.choices[sequence.index], draft.request.params
        if token is None:
            raise not_finite_error(sequence.group)
        if choice.finish_reason is not None:  # no tokens were asked for
            return True
        logprob: float | None = None
        top: TopTokens = ()
        if params.logprobs is not None:
            scores = log_probs(logits[None])
            [logprob], [top] = chosen_log_probs(scores, [token]), top_tokens(scores, params.logprobs)
        walk = draft.walks[sequence.index]
        delta = choice.push(token, logprob, top, complete=walk is not None and walk.take(token))
        if walk is not None and delta.finish_reason is None:
            _ = walk.allowed  # found out here, so that where it cannot be this request ends and no other
        sequence.ids.append(token)
        self._count(sequence.group.key[1], draft)
        if draft.request.on_token is not None:
            draft.request.on_token(delta)
        return delta.finish_reason is not None

    def _count(self, digest: str | None, draft: GenerationDraft) -> None:
        """Count a token that was drawn."""
        self.counts["generated_tokens_total"] += 1
        self._tally.tokens(digest, generated=1)
        if draft.first is None:
            draft.first = time.monotonic()
            self._tally.first_token(digest, draft.first - draft.came)


def _step_told(groups: list[SequenceGroup]) -> Failures:
    """Tell the listeners of these requests that the step is over, each once; the requests of those that raise."""
    listeners: dict[Callable[[], None], list[SequenceGroup]] = {}
    for group in groups:
        if isinstance(group.request, GenerateRequest) and group.request.on_step is not None:
            listeners.setdefault(group.request.on_step, []).append(group)
    failures: Failures = []
    for told, of in listeners.items():
        try:
            told()
        except Exception as error:
            failures += [(group, error) for group in of]
    return failures


def not_finite_error(group: SequenceGroup) -> SoupError:
    """The error of a request whose model answers NaN or infinity."""
    base_id, digest = group.key
    if digest is None:
        return Unavailable(f"Base model {base_id!r} answers values that are not finite numbers.")
    return InvalidWeights(f"Base model {base_id!r} with adapter {digest} answers values that are not finite numbers.")
