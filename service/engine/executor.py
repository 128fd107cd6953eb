"""Executes one step: loads adapters, runs the forward pass, samples next tokens, calls listeners.

Called by the engine's thread. Errors of one request are returned beside the finished sequences; a pass that fails is
repeated request by request, so that no request ends with another's error.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor

from registry.adapters.batched import ReadyAdapter
from registry.errors import InvalidWeights, SoupError, Unavailable
from service.engine.adapter_cache import AdapterCache
from service.engine.draft import Draft, GenerationDraft, ScoreDraft
from service.engine.request import TopTokens
from service.engine.runner import ForwardResult, ForwardTask, Runner
from service.engine.sampler import Draw, chosen_log_probs, log_probs, sample_tokens, top_tokens
from service.engine.steps import CachedPrefix, Segment, Sequence, SequenceGroup, Step

log = logging.getLogger("soup.engine")

Failures = list[tuple[SequenceGroup, Exception]]


class Executor:
    """Runs steps and adds their results to the drafts of their requests."""

    def __init__(self, adapters: AdapterCache, drafts: Mapping[SequenceGroup, Draft]) -> None:
        self._adapters = adapters
        self._drafts = drafts
        names = ("batches_total", "prompt_tokens_total", "prompt_tokens_reused_total", "generated_tokens_total")
        self.counts = dict.fromkeys(names, 0)

    def run(
        self,
        step: Step,
        runner: Runner,
        running: Mapping[str, Iterable[Sequence]],
        on_computed: Callable[[Step], None],
    ) -> tuple[list[Sequence], Failures]:
        """Run one forward pass; return the finished sequences, and the requests that failed with their errors.

        The adapters of `running` sequences, by base model, are not evicted for those that the step loads.
        `on_computed` gets each part of the step whose keys and values are there, before its tokens are sampled.
        """
        adapters, failures = self._load_adapters(step, runner, running)
        step = step.without({group for group, _ in failures})
        finished: list[Sequence] = []
        for computed, results in self._run_passes(step, runner, adapters, failures):
            on_computed(computed)
            tokens = self._sample(computed, results)
            for segment, result in zip(computed.segments, results, strict=True):
                try:
                    if self._add_result(segment, result, tokens.get(segment.sequence)):
                        finished.append(segment.sequence)
                except Exception as error:  # of a listener, or logits that are not finite: of this request only
                    failures.append((segment.sequence.group, error))
        return finished, failures + _call_step_listeners(step.groups)

    def _load_adapters(
        self, step: Step, runner: Runner, running: Mapping[str, Iterable[Sequence]]
    ) -> tuple[dict[str, ReadyAdapter], Failures]:
        """The adapters of a step, by digest, and the requests whose adapter cannot be loaded."""

        def pinned() -> set[str | None]:
            groups = [sequence.group for sequences in running.values() for sequence in sequences]
            return {group.digest for group in groups + step.groups}

        adapters: dict[str, ReadyAdapter] = {}
        errors: dict[str, Exception] = {}
        for group in step.groups:
            handle = group.request.adapter
            is_first_step = self._drafts[group].mark_started()
            if handle is None:
                continue
            self._adapters.hits += is_first_step and self._adapters.is_cached(runner, handle)
            if handle.digest in adapters or handle.digest in errors:
                continue
            try:
                adapters[handle.digest] = self._adapters.get(runner, handle, pinned=pinned)
            except Exception as error:
                errors[handle.digest] = error
        return adapters, [(group, errors[group.digest]) for group in step.groups if group.digest in errors]

    def _run_passes(
        self, step: Step, runner: Runner, adapters: Mapping[str, ReadyAdapter], failures: Failures
    ) -> list[tuple[Step, list[ForwardResult]]]:
        """Results of the segments of a step, from one pass, or if that fails, from one pass for each request."""
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
        passes = []
        for group in step.groups:
            passes += self._run_passes(step.only(group), runner, adapters, failures)
        return passes

    def _task(self, segment: Segment, adapters: Mapping[str, ReadyAdapter]) -> ForwardTask:
        sequence, group = segment.sequence, segment.sequence.group
        draft = self._drafts[group]
        needs_nll = needs_pooled = False
        pooling_offset = unscored = 0
        alternatives: int | None = None
        if isinstance(draft, ScoreDraft):
            needs_nll = draft.has_likelihood
            needs_pooled = sequence.index in draft.request.pooled or not draft.has_likelihood
            pooling_offset = int(needs_pooled and draft.request.bos and segment.start == 0)
            unscored = max(0, draft.first_scored(sequence.index) - segment.start - 1)
        elif (
            draft.request.params.prompt_logprobs and sequence.index == 0 and segment.start < sequence.prompt_length - 1
        ):
            alternatives = draft.request.params.logprobs or 0
        return ForwardTask(
            ids=sequence.ids[segment.start : segment.end],
            start=segment.start,
            adapter=None if group.digest is None else adapters[group.digest],
            sequence=sequence if segment.keeps_kv else None,
            copy_from=segment.copy_from,
            next_id=sequence.ids[segment.end] if segment.end < len(sequence.ids) else None,
            needs_logits=segment.output == "next",
            needs_nll=needs_nll,
            unscored=unscored,
            alternatives=alternatives,
            needs_pooled=needs_pooled,
            pooling_offset=pooling_offset,
            reserve=max(len(sequence.ids), segment.end),
        )

    # --- results --------------------------------------------------------------------------------

    def _sample(self, step: Step, results: list[ForwardResult]) -> dict[Sequence, int | None]:
        """The next token of each sequence with logits, sampled together; None if they are not finite."""
        pairs = zip((segment.sequence for segment in step.segments), results, strict=True)
        logits = {sequence: result.logits for sequence, result in pairs if result.logits is not None}
        if not logits:
            return {}
        tokens = sample_tokens(torch.stack(list(logits.values())), [self._draw(sequence) for sequence in logits])
        return dict(zip(logits, tokens, strict=True))

    def _draw(self, sequence: Sequence) -> Draw:
        draft = self._drafts[sequence.group]
        assert isinstance(draft, GenerationDraft), "only generations sample tokens"
        grammar_state = draft.grammar_states[sequence.index]
        return Draw(
            draft.request.params,
            draft.random_streams[sequence.index],
            draft.choices[sequence.index].position,
            sequence.ids,
            sequence.prompt_length,
            None if grammar_state is None else grammar_state.allowed,
        )

    def _add_result(self, segment: Segment, result: ForwardResult, token: int | None) -> bool:
        """Add a segment's result, and the sampled `token`, to its draft; return True if its sequence is finished."""
        sequence = segment.sequence
        draft = self._drafts[sequence.group]
        if isinstance(draft, ScoreDraft):
            self.counts["prompt_tokens_total"] += segment.length
            return self._add_scores(draft, segment, result)
        if segment.start < sequence.prompt_length:
            self.counts["prompt_tokens_total"] += segment.length
        if segment.start == 0 or segment.copy_from is not None:
            reused = segment.start if isinstance(segment.copy_from, CachedPrefix) else 0
            self.counts["prompt_tokens_reused_total"] += draft.add_reused(reused)
        if result.log_probs:
            draft.add_prompt_scores(segment.start, result.log_probs, result.top_tokens, sequence.prompt_length)
        return result.logits is not None and self._add_token(sequence, draft, result.logits, token)

    def _add_scores(self, draft: ScoreDraft, segment: Segment, result: ForwardResult) -> bool:
        sequence = segment.sequence
        value = result.nll + (0.0 if result.pooled is None else float(result.pooled.sum()))
        if not math.isfinite(value):
            raise not_finite_error(sequence.group)
        draft.add(sequence.index, result.nll, result.pooled, result.pooled_tokens, is_first=segment.start == 0)
        return segment.end == len(sequence.ids)

    def _add_token(self, sequence: Sequence, draft: GenerationDraft, logits: Tensor, token: int | None) -> bool:
        """Add the token sampled from logits (vocabulary,) and call the listener; return True if the choice finished."""
        choice, params = draft.choices[sequence.index], draft.request.params
        if token is None:
            raise not_finite_error(sequence.group)
        if choice.finish_reason is not None:  # max_tokens is 0
            return True
        logprob: float | None = None
        top: TopTokens = ()
        if params.logprobs is not None:
            scores = log_probs(logits[None])
            [logprob], [top] = chosen_log_probs(scores, [token]), top_tokens(scores, params.logprobs)
        grammar_state = draft.grammar_states[sequence.index]
        is_complete = grammar_state is not None and grammar_state.advance(token)
        delta = choice.push(token, logprob, top, complete=is_complete)
        if grammar_state is not None and delta.finish_reason is None:
            _ = grammar_state.allowed  # computed here, so that an error ends this request and no other
        sequence.ids.append(token)
        self.counts["generated_tokens_total"] += 1
        draft.first_token_at = draft.first_token_at or time.monotonic()
        if draft.request.on_token is not None:
            draft.request.on_token(delta)
        return delta.finish_reason is not None


def _call_step_listeners(groups: list[SequenceGroup]) -> Failures:
    """Call each `on_step` listener of these requests once; return the requests of those that raise."""
    failures: Failures = []
    for listener in dict.fromkeys(group.request.on_step for group in groups if group.request.on_step is not None):
        try:
            listener()
        except Exception as error:
            failures += [(group, error) for group in groups if group.request.on_step == listener]
    return failures


def not_finite_error(group: SequenceGroup) -> SoupError:
    """The error of a request whose model computes NaN or infinity."""
    if group.digest is None:
        return Unavailable(f"Base model {group.base_id!r} answers values that are not finite numbers.")
    return InvalidWeights(
        f"Base model {group.base_id!r} with adapter {group.digest} answers values that are not finite numbers."
    )
