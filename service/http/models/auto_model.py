"""`model: "auto"`: a mixture of the adapters whose samples are most like the text of a request, or the base model.

The weights are the adapters' posteriors given the text, as effort `instant` has them for a sample. Disabled by
`SOUP_AUTO_MODEL=false`; a base model with the id `auto` takes precedence. The answer names the chosen model in `model`
and in its header `x-soup-model`. `/v1/route` makes the same choice without a request to the engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from fastapi import Request

from registry.errors import Incompatible, InvalidParameter, InvalidPrompt, InvalidRecipe
from registry.samples.sample import clean_sample
from registry.select.select import select_for_prompt
from registry.selectors.novelty import NOVEL
from registry.spec import PoolRequest
from service.access.keys import Principal
from service.http.models.inference_limits import limit_embeddings
from service.http.models.metering import check_rates
from service.http.models.mixture_names import mixture_name
from service.http.models.named_models import ResolvedModel, language_model, mixture_of, resolve_model, sole_base
from service.http.schemas.sampling import Sampling
from service.http.schemas.wire import MixedAdapter
from service.services import Services

AUTO = "auto"
LAST_CHARACTERS = 20_000
"""Characters at the end of a text that the choice is based on: a question is at the end."""
LAST_TEXTS = 32
"""Texts at the end of a request that the choice is based on."""
PLACES = 2
"""Decimals of a weight, so that prompts that are alike share a mixture in memory."""
MAJORITY = 0.5
"""The least posterior of a single adapter that answers instead of the base model."""


@dataclass(frozen=True)
class PromptChoice:
    """The model that answers a prompt: a mixture of `adapters`, weighted by their posteriors, best first.

    If they cannot all be mixed, `model` leaves out the last ones; without adapters it is the base model. `best_share`
    is the posterior of the first adapter before it is rounded, and `novelty` the percentile of the prompt's distance to
    the adapters among the distances of their own samples' text.
    """

    model: ResolvedModel
    adapters: tuple[MixedAdapter, ...]
    best_share: float
    novelty: float | None

    @property
    def single(self) -> str:
        """The adapter with most of the posterior; the base model if that is less than half, or the prompt is novel."""
        is_novel = self.novelty is not None and self.novelty >= NOVEL
        is_clear = bool(self.adapters) and self.best_share >= MAJORITY and not is_novel
        return self.adapters[0].ref if is_clear else f"base/{self.model.base_id}"


def is_auto(services: Services, model: str) -> bool:
    """Return True if the server is to choose the model of a request."""
    return model == AUTO and services.settings.auto_model and AUTO not in services.bases


def model_for(
    request: Request, services: Services, principal: Principal, body: Sampling, texts: Sequence[str]
) -> ResolvedModel:
    """Return the model or mixture that a request names, or for `auto` the mixture that its texts are most like.

    Raises as `language_model` does, and for `auto` as `check_rates` and `choose_for_prompt`.
    """
    if not is_auto(services, body.model):
        return language_model(services, principal, body.model, body.adapters)
    if body.adapters is not None:
        raise InvalidParameter(
            f"'adapters' cannot be combined with the model '{AUTO}', which chooses them: name a base model instead.",
            param="adapters",
        )
    if len(services.bases) != 1:
        raise InvalidParameter(
            f"'{AUTO}' chooses among the adapters of one base model, and this server has {len(services.bases)}: name a "
            "model.",
            param="model",
        )
    check_rates(request, services, principal)  # before the texts are embedded
    return replace(choose_for_prompt(services, principal, texts, sole_base(services)).model, chosen=True)


def choose_for_prompt(services: Services, principal: Principal, texts: Sequence[str], base_id: str) -> PromptChoice:
    """Choose adapters of a base model for the end of a request's texts.

    Raises InvalidPrompt without any text, and Unavailable if no selector was fitted for the adapters that the key sees.
    """
    base = services.bases[base_id]
    passages = [text[-LAST_CHARACTERS:] for text in texts[-LAST_TEXTS:]]
    if not any(text.strip() for text in passages):
        raise InvalidPrompt("The model is chosen by the text of the prompt, and this prompt has no text: send text.")
    limits = services.registry.limits.sample.with_single_sequence
    sample = clean_sample(passages, limits, bos=base.bos, novel=True)
    with limit_embeddings(services):
        pool = PoolRequest(base_model=base_id)
        selection = select_for_prompt(services.registry, principal.caller, sample, pool=pool)
    adapters = tuple(MixedAdapter(ref=ref, weight=round(share, PLACES)) for ref, share in selection.shares.items())
    if base.shape.kind == "encoder":  # neither it nor its adapters answer with text
        adapters = ()
    best_share = max(selection.shares.values(), default=0.0)
    return PromptChoice(_model_of(services, principal, base_id, adapters), adapters, best_share, selection.novelty)


def _model_of(
    services: Services, principal: Principal, base_id: str, adapters: Sequence[MixedAdapter]
) -> ResolvedModel:
    """Resolve the mixture of as many of the first adapters as can be mixed; of none the base model."""
    for count in range(len(adapters), 1, -1):
        with suppress(InvalidRecipe, Incompatible):
            mixed = adapters[:count]
            return mixture_of(services, principal, mixed, name=mixture_name(mixed))
    return resolve_model(services, principal, adapters[0].ref if adapters else f"base/{base_id}")
