"""`model: "auto"`: choose the adapter whose sample is most like the text of a request, or the base model.

Enabled by `SOUP_AUTO_MODEL`; a base model with the id `auto` takes precedence. The answer names the chosen model in
`model` and in its header `x-soup-model`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from registry.errors import InvalidPrompt
from registry.samples.sample import prepare
from registry.select.select import likeliest
from registry.spec import PoolRequest
from service.access.keys import Principal
from service.engine.text_support import why_no_text
from service.http.models.embedding_limit import limit_embeddings
from service.http.models.named_models import ResolvedModel, language_model, resolve_model, sole_base
from service.http.schemas.sampling import Sampling
from service.services import Services

AUTO = "auto"
LAST_CHARACTERS = 20_000
"""Characters at the end of a text that the choice is based on: a question is at the end."""
LAST_TEXTS = 32
"""Texts at the end of a request that the choice is based on."""


def is_auto(services: Services, model: str) -> bool:
    """Return True if the server is to choose the model of a request."""
    return model == AUTO and services.settings.auto_model and AUTO not in services.bases


def model_for(services: Services, principal: Principal, body: Sampling, texts: Sequence[str]) -> ResolvedModel:
    """Return the model or mixture that a request names, or for `auto` the one whose sample is most like its texts.

    Raises as `language_model` does; for `auto` InvalidParameter on a server of several base models, InvalidPrompt
    without any text, and Unavailable if no selector was fitted for the adapters that the key sees.
    """
    if body.adapters is not None or not is_auto(services, body.model):
        return language_model(services, principal, body.model, body.adapters)
    base_id = sole_base(services)
    base = services.bases[base_id]
    passages = [text[-LAST_CHARACTERS:] for text in texts[-LAST_TEXTS:]]
    if not any(text.strip() for text in passages):
        raise InvalidPrompt(
            f"'{AUTO}' chooses by the text of the prompt, and this prompt has no text: send text, or name a model.",
            param="model",
        )
    limits = services.registry.limits.sample.with_single_sequence
    sample = prepare(passages, limits, bos=base.bos, novel=True)
    with limit_embeddings(services):
        best = likeliest(services.registry, principal.caller(""), sample, pool=PoolRequest(base_model=base_id))
    chosen = None if best is None else resolve_model(services, principal, best.member.ref)
    if chosen is None or chosen.config is None or why_no_text(base.shape, chosen.config) is not None:
        return replace(language_model(services, principal, f"base/{base_id}"), chosen=True)
    return replace(chosen, chosen=True)
