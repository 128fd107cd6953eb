"""Which adapters and base models can generate or score text, and what to tell callers about those that cannot.

Adapters with a head, banks of experts and adapters of encoders are stored, evaluated and mixed like any other. But they
predict no next token: generating or scoring text with one would silently run another model. Requests are checked when
they reach the engine, and before that by the routes, which know the names.
"""

from __future__ import annotations

from registry.base_model import BaseText
from registry.errors import InvalidParameter
from registry.spec import AdapterConfig, BaseShape

_EVALUATE = "`soup pull` it and run `soup evaluate` on its directory"


def check_supports_text(shape: BaseShape, config: AdapterConfig | None, label: str) -> None:
    """Raise InvalidParameter where a model, called `label` in the message, neither generates nor scores text."""
    reason = why_no_text(shape, config)
    if reason is not None:
        raise InvalidParameter(f"{label} {reason}.", param="model")


def why_no_text(shape: BaseShape, config: AdapterConfig | None) -> str | None:
    """Return why an adapter (None: the base model alone) is no language model and what to do; None if it is one."""
    head = None if config is None else config.head
    encoder = f"an encoder (family {shape.model_type!r})" if shape.kind == "encoder" else None
    if head is not None:
        on_encoder = "" if encoder is None else f" on {encoder}"
        return f"answers with a head for {head.purpose}{on_encoder} and not with text: {_EVALUATE}"
    if encoder is not None and config is None:
        return f"is {encoder}, which neither continues nor scores text: ask /v1/embeddings for its vectors"
    if encoder is not None:
        return f"is an adapter of {encoder}, which neither continues nor scores text: {_EVALUATE}"
    return None if config is None else config.not_served


def stop_token_ids(base: BaseText, extra: tuple[int, ...] = ()) -> tuple[int, ...]:
    """Tokens that end a generation of a base model, with the `extra` ones of a request."""
    eos = () if base.eos_id is None else (base.eos_id,)
    return tuple(dict.fromkeys((*eos, *base.end_ids, *extra)))


def text_capacity(shape: BaseShape, config: AdapterConfig | None) -> int:
    """Tokens of the context that remain for text beside the virtual tokens of a prefix adapter."""
    return shape.context - (0 if config is None else config.prefix_length)
