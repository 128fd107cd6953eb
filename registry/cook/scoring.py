"""Score candidates beside the base model and the best single adapter, and take the best of them.

Candidates are scored on held-out passages. With cross-validation each fold is scored by a soup that was made without
it. A strategy that holds nothing out proposes one candidate, which is scored on the sample that chose it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from registry.cook.acceptance import verification_of
from registry.cook.answer import Outcome
from registry.cook.candidate import Candidate, Proposal, Scores
from registry.cook.job import CookJob
from registry.cook.mix import Mixed, mix
from registry.errors import Internal
from registry.spec import Evidence, NoiseControl, Passage, Search, SingleBeside, Trial, Verification, Weighing
from registry.uncertainty import paired_difference


def judge(job: CookJob, proposal: Proposal, evidence: Evidence) -> Outcome:
    """The best candidate of a proposal, with its verification and the report on all of them as evidence."""
    if proposal.search is None:
        if len(proposal.candidates) != 1:
            raise Internal(f"{len(proposal.candidates)} candidates without a search: nothing is held out to choose by")
        return _judge_on_sample(job, proposal.candidates[0], evidence)
    return _judge_held_out(job, proposal, proposal.search, evidence)


def score_texts(job: CookJob, soup: Mixed | None, texts: Sequence[Passage]) -> Scores:
    """The scores of texts under a soup or, without one, the base model."""
    scores = job.score(texts, None if soup is None else soup.adapter)
    return Scores(np.array([score.nll for score in scores]), np.array([score.tokens for score in scores]))


def _base_scores(job: CookJob, numbers: Sequence[int], texts: Sequence[Passage]) -> Scores:
    """The base model's scores of passages, which embedding the sample may have yielded."""
    vectors = None if job.selection is None else job.selection.vectors
    if vectors is not None and vectors.base_nll is not None and vectors.base_tokens is not None:
        return Scores(vectors.base_nll[list(numbers)], vectors.base_tokens[list(numbers)])
    return score_texts(job, None, texts)


def _verify(scores: Scores, base: Scores, *, held_out: bool, ways: int = 1) -> Verification:
    """Compare a soup with the base model on the same passages; raises Internal if their tokens differ."""
    if scores.tokens.tolist() != base.tokens.tolist():
        raise Internal("the soup and the base model were scored on different tokens")
    return verification_of(scores.nll, base.nll, scores.tokens, held_out=held_out, ways=ways)


# --- on the sample -----------------------------------------------------------------------------------


def _judge_on_sample(job: CookJob, candidate: Candidate, evidence: Evidence) -> Outcome:
    job.report(2, f"mixing {len(candidate.plan.ingredients)} adapters")
    soup = mix(job.registry, job.base, candidate.plan)
    if job.sample is None or not job.request.verify:
        return Outcome(soup, evidence)
    job.report(3, "verifying on the sample")
    scores = score_texts(job, soup, job.texts)
    verification = _verify(scores, _base_scores(job, range(len(job.texts)), job.texts), held_out=False)
    return Outcome(soup, evidence.model_copy(update={"verification": verification}))


# --- on held-out passages ----------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class ScoredCandidate:
    """A candidate, its soup, and the scores of the soup on the held-out passages."""

    candidate: Candidate
    soup: Mixed
    scores: Scores
    verification: Verification

    @property
    def can_be_answer(self) -> bool:
        """False if training kept the soup that it started from, which is a candidate already."""
        return self.candidate.trained is None or not self.candidate.trained.is_start

    @property
    def loss(self) -> float:
        """Mean NLL per token, in nats."""
        return self.verification.soup_nll

    @property
    def trial(self) -> Trial:
        """The candidate as it is reported."""
        assert self.candidate.way != "single"
        return Trial(
            way=self.candidate.way,
            members=len(self.soup.ingredients),
            width=self.soup.config.width,
            difference=self.verification.difference,
            standard_error=self.verification.standard_error,
        )


def _judge_held_out(job: CookJob, proposal: Proposal, search: Search, evidence: Evidence) -> Outcome:
    assert job.sample is not None
    held_out = job.sample.split.held_out
    base = proposal.base
    if base is None:
        message = f"trying {len(proposal.candidates)} soups on {len(held_out)} passages that were held out"
        job.report(2, message)
        base = _base_scores(job, held_out, job.sample.held_out_texts)
    scored = [_score(job, candidate, base) for candidate in proposal.candidates]
    rivals = [candidate for candidate in scored if candidate.can_be_answer]
    best_mixture = _best_mixture(rivals)
    narrowed = None if best_mixture is None else best_mixture.candidate.narrowed()
    if best_mixture is not None and narrowed is not None:
        scored_narrow = _score(job, narrowed, base)
        scored.append(scored_narrow)
        if not _is_worse(scored_narrow, best_mixture):
            rivals = [*(rival for rival in rivals if rival is not best_mixture), scored_narrow]
    search = search.model_copy(update={"trials": tuple(candidate.trial for candidate in scored)})
    if not rivals:
        return Outcome(None, evidence.model_copy(update={"search": search}))
    best = min(rivals, key=_loss_then_selected_last)
    verification = _verify(best.scores, base, held_out=True, ways=len(rivals))
    search = search.model_copy(
        update={
            "noise": _noise_control(job, proposal, base, best),
            "single": _single_beside(job, proposal, base, best),
        }
    )
    return Outcome(best.soup, evidence.model_copy(update={"search": search, "verification": verification}))


def _score(job: CookJob, candidate: Candidate, base: Scores) -> ScoredCandidate:
    """Mix a candidate and score it; if it has plans of folds, each fold with the soup of its own plan."""
    assert job.sample is not None
    if candidate.trained is not None:
        soup, scores = candidate.trained.soup, candidate.trained.scores
    else:
        soup = mix(job.registry, job.base, candidate.plan)
        if candidate.fold_plans:
            scores = _scores_by_fold(job, candidate)
        else:
            scores = score_texts(job, soup, job.sample.held_out_texts)
    verification = _verify(scores, base, held_out=True)
    return ScoredCandidate(candidate, soup, scores, verification)


def _scores_by_fold(job: CookJob, candidate: Candidate) -> Scores:
    assert job.sample is not None
    scores = []
    for plan, fold in zip(candidate.fold_plans, job.sample.split.folds, strict=True):
        soup = None if plan is None else mix(job.registry, job.base, plan)
        scores.append(score_texts(job, soup, job.sample.texts_of(fold)))
    return Scores(
        np.concatenate([fold_scores.nll for fold_scores in scores]),
        np.concatenate([fold_scores.tokens for fold_scores in scores]),
    )


def _best_mixture(scored: Sequence[ScoredCandidate]) -> ScoredCandidate | None:
    """The best of the mixtures by weighing, which may be wide."""
    mixtures = [candidate for candidate in scored if candidate.candidate.way in ("weighed", "em", "greedy")]
    return min(mixtures, key=lambda candidate: (candidate.loss, candidate.candidate.way), default=None)


def _loss_then_selected_last(rival: ScoredCandidate) -> tuple[float, bool]:
    """Sort key of the best: the loss. In a tie a weighed soup wins against the selector's, and the start of a training
    against its result.
    """
    return rival.loss, rival.candidate.way == "selected" and rival.candidate.trained is None


def _is_worse(narrow: ScoredCandidate, wide: ScoredCandidate) -> bool:
    """Return True if the narrow form of a wide soup is worse by more than a standard error."""
    worse = paired_difference(narrow.scores.nll, wide.scores.nll, wide.scores.tokens)
    return worse.difference > worse.standard_error


# --- beside the best ---------------------------------------------------------------------------------


def _single_beside(job: CookJob, proposal: Proposal, base: Scores, best: ScoredCandidate) -> SingleBeside | None:
    """The best single adapter beside the base and the best soup; None where the soup is that adapter."""
    if proposal.single is None:
        return None
    (adapter,) = proposal.single.plan.ingredients
    if [ingredient.digest for ingredient in best.soup.ingredients] == [adapter.digest]:
        return None
    single = _score(job, proposal.single, base)
    ahead = paired_difference(best.scores.nll, single.scores.nll, best.scores.tokens)
    return SingleBeside(
        ref=adapter.ref,
        digest=adapter.digest,
        difference=single.verification.difference,
        standard_error=single.verification.standard_error,
        ahead=ahead.difference,
        ahead_standard_error=ahead.standard_error,
    )


def _noise_control(job: CookJob, proposal: Proposal, base: Scores, best: ScoredCandidate) -> NoiseControl | None:
    """Random adapters of the same sizes, weighed in the same way and compared with the base and the best soup."""
    if not proposal.noise:
        return None
    weighings: list[Weighing] = []
    for request in proposal.noise:
        job.report(3, f"weighing {len(request.candidates)} adapters of noise")
        weighings.append(job.computations.weigh(job.base.entry, request))
    unseen = [weighing.unseen for weighing in weighings if weighing.unseen is not None]
    noise_nll = np.array([nll for scores in unseen for nll in scores.nll])
    if [count for scores in unseen for count in scores.tokens] != best.scores.tokens.tolist():
        raise Internal("noise and the soup were scored on different tokens")
    gained = paired_difference(noise_nll, base.nll, best.scores.tokens)
    ahead = paired_difference(best.scores.nll, noise_nll, best.scores.tokens)
    return NoiseControl(
        difference=gained.difference,
        standard_error=gained.standard_error,
        ahead=ahead.difference,
        ahead_standard_error=ahead.standard_error,
    )
