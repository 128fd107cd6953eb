"""The answers of `POST /v1/perplexity` and of the page that compares models: requests to the engine, and reports."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from fastapi import Request

from registry.base_model.likelihood import Window, text_scores
from registry.errors import InvalidParameter
from registry.evaluate import perplexity as evaluate
from registry.spec import Passage, PerplexityReport
from service.access.keys import Principal
from service.engine import ScoreRequest, Scores
from service.engine.text_calls import score_request, text_windows
from service.http.answers.streaming import finish
from service.http.models.inference_limits import check_texts
from service.http.models.metering import admit
from service.http.models.named_models import ResolvedModel, language_model
from service.http.schemas.perplexity import ComparedModel, PerplexityAnswer
from service.http.schemas.wire import MixedAdapter
from service.http.thread_turns import in_thread
from service.services import Services

NamedModel = tuple[str, Sequence[MixedAdapter] | None]
"""The name of a model, and the adapters that a base model is given."""


async def compare_with_first(
    request: Request, services: Services, principal: Principal, names: Sequence[str], texts: Sequence[Passage]
) -> list[PerplexityAnswer]:
    """Return the perplexity of each model but the first, compared with the first; each model is scored once."""
    models = [(name, None) for name in names]
    inputs, requests = await in_thread(admit_texts, request, services, principal, models, texts)
    scores = await finish(request, services.engine, requests)
    return await in_thread(perplexity_answers, texts, inputs, scores, baseline=0, seed=0)


@dataclass(frozen=True)
class ModelInput:
    """The texts for one model: the windows of token ids of each text."""

    model: ResolvedModel
    windows: list[list[Window]]

    def request(self, principal: Principal) -> ScoreRequest:
        """Return one request to the engine for the windows of all texts, in order."""
        flat = [window for text in self.windows for window in text]
        return replace(score_request(self.model.base, flat, self.model.stored), owner=principal.key_id)


def admit_texts(
    request: Request, services: Services, principal: Principal, models: Sequence[NamedModel], texts: Sequence[Passage]
) -> tuple[list[ModelInput], list[ScoreRequest]]:
    """Check, resolve and tokenise; return the texts for each model and the admitted requests to the engine.

    Raises as `check_texts`, `language_model` and `admit` do, and InvalidParameter for models of several base models.
    """
    check_texts(texts, services.settings, param="texts")
    services.engine.check_admission(principal.key_id, local=True)  # before tokenising, which takes time from others
    resolved = [language_model(services, principal, name, adapters) for name, adapters in models]
    if len({model.base_id for model in resolved}) > 1:
        bases = ", ".join(dict.fromkeys(model.base_id for model in resolved))
        raise InvalidParameter(
            f"The models have different base models ({bases}) and thus different tokens: compare models of "
            "one base model.",
            param="baseline",
        )
    inputs = [ModelInput(model, [text_windows(model.base, text, model.config) for text in texts]) for model in resolved]
    return inputs, admit(request, services, principal, [(item.model, item.request(principal)) for item in inputs])


def perplexity_answers(
    texts: Sequence[Passage], inputs: Sequence[ModelInput], scores: Sequence[Scores], *, baseline: int | None, seed: int
) -> list[PerplexityAnswer]:
    """Return the answer for each model but the baseline; `baseline` is an index into `inputs`."""
    passages = [text_scores(texts, item.windows, score.nll) for item, score in zip(inputs, scores, strict=True)]
    base_model, base_passages = (None, None) if baseline is None else (inputs[baseline].model, passages[baseline])
    return [
        _answer(item.model, evaluate.report(passages[number], base_passages, seed=seed), base_model)
        for number, item in enumerate(inputs)
        if number != baseline
    ]


def _answer(model: ResolvedModel, report: PerplexityReport, baseline: ResolvedModel | None) -> PerplexityAnswer:
    compared = None
    if report.baseline is not None and baseline is not None:
        compared = ComparedModel(model=baseline.name, digest=baseline.digest, **report.baseline.model_dump())
    return PerplexityAnswer(
        **report.model_dump(exclude={"baseline"}), model=model.name, digest=model.digest, baseline=compared
    )
