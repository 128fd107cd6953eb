"""What the engine answers with text, and what to say of adapters and base models that it does not.

An adapter of a head, a bank of experts and everything on an encoder are stored, evaluated and mixed like any other,
but say nothing of the next token: continuing or scoring a text with one would silently be the work of something
else. Asked by `request` for whatever reaches the engine, and before that by the routes, which know the names.
"""

from __future__ import annotations

from registry.base_model import BaseText
from registry.errors import InvalidParameter
from registry.spec import AdapterConfig, BaseShape

_EVALUATE = "`soup pull` it and run `soup evaluate` on its directory"


def check_supports_text(shape: BaseShape, config: AdapterConfig | None, named: str) -> None:
    """Raises InvalidParameter, in one sentence that says what it is, where it neither continues nor scores text."""
    why = why_no_text(shape, config)
    if why is not None:
        raise InvalidParameter(f"{named} {why}.", param="model")


def why_no_text(shape: BaseShape, config: AdapterConfig | None) -> str | None:
    """What an adapter (None: the base model alone) is instead of a language model, and what to do; None for one."""
    head = None if config is None else config.head
    on = f"an encoder (family {shape.model_type!r})" if shape.kind == "encoder" else None
    if head is not None:
        where = "" if on is None else f" on {on}"
        return f"answers with a head for {head.purpose}{where} and not with text: {_EVALUATE}"
    if on is not None and config is None:
        return f"is {on}, which neither continues nor scores text: ask /v1/embeddings for its vectors"
    if on is not None:
        return f"is an adapter of {on}, which neither continues nor scores text: {_EVALUATE}"
    return None if config is None else config.not_served


def stop_token_ids(base: BaseText, more: tuple[int, ...] = ()) -> tuple[int, ...]:
    """The tokens that end what a base model writes, and `more` that do in one request."""
    own = () if base.eos_id is None else (base.eos_id,)
    return tuple(dict.fromkeys((*own, *base.end_ids, *more)))


def text_capacity(shape: BaseShape, config: AdapterConfig | None) -> int:
    """Tokens of the context that are left to a text: a prefix takes some."""
    return shape.context - (0 if config is None else config.prefix_length)
