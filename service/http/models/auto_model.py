"""`model: "auto"`: the adapter that the text of a request is most like, or the base model where none is.

A setting opens it (`SOUP_AUTO_MODEL`); a base model that is called so goes first. What was chosen is in the answer's
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
from service.http.models.embedding_places import embedding_place
from service.http.models.named_models import ResolvedModel, language_model, resolve_model, sole_base
from service.parts import Services

AUTO = "auto"
LOOKED_AT = 20_000
"""Characters of a text that are looked at: its last ones, which are what is asked."""
MOST_TEXTS = 32
"""Of a request that are looked at, the last ones."""


def is_auto(services: Services, model: str) -> bool:
    """Whether a request leaves the choice to the server, and the server makes it."""
    return model == AUTO and services.settings.auto_model and AUTO not in services.bases


def model_for(services: Services, principal: Principal, model: str, texts: Sequence[str]) -> ResolvedModel:
    """The model of a request: the one it names, or the one that its texts are most like.

    Raises what `language_model` raises; of `auto` InvalidParameter on a server of several base models, InvalidPrompt
    where there is no text, and Unavailable where no selector was fitted for the adapters that the key sees.
    """
    if not is_auto(services, model):
        return language_model(services, principal, model)
    base_id = sole_base(services)
    base = services.bases[base_id]
    seen = [text[-LOOKED_AT:] for text in texts[-MOST_TEXTS:]]
    if not any(text.strip() for text in seen):
        raise InvalidPrompt(
            f"'{AUTO}' goes by the text of a prompt, and here is none: send text, or name a model.", param="model"
        )
    limits = services.registry.limits.sample.with_single_sequence
    sample = prepare(seen, limits, bos=base.bos, novel=True)
    with embedding_place(services):
        best = likeliest(services.registry, principal.caller(""), sample, pool=PoolRequest(base_model=base_id))
    chosen = None if best is None else resolve_model(services, principal, best.member.ref)
    if chosen is None or chosen.row is None or why_no_text(base.shape, chosen.row.config) is not None:
        return replace(language_model(services, principal, f"base/{base_id}"), chosen=True)
    return replace(chosen, chosen=True)
