"""`/tokenize`, `/detokenize` and `/tokenizer_info`, in the shapes of vLLM, which clients and harnesses know."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from fastapi import APIRouter, Query

from registry.errors import InvalidParameter, TooLarge
from service.engine.texts import has_bos
from service.http.auth import ModelUser
from service.http.resolve import ResolvedModel, resolve_model
from service.http.schemas.tokens import (
    DetokenizeAnswer,
    DetokenizeRequest,
    TokenizeAnswer,
    TokenizeRequest,
    TokenizerInfo,
)
from service.http.state import State
from service.parts import Parts

router = APIRouter(tags=["inference"])


@router.post("/tokenize")
def tokenize(body: TokenizeRequest, parts: State, who: ModelUser) -> TokenizeAnswer:
    """Token ids of a text, with the base's BOS in front unless `add_special_tokens` is false."""
    check_text(body.prompt, parts, param="prompt")
    base = resolve_model(parts, who, body.model).base
    tokens = base.tokenize(body.prompt, bos=None if body.add_special_tokens else False)
    strings = [str(base.tokenizer.convert_ids_to_tokens(token)) for token in tokens]
    return TokenizeAnswer(
        count=len(tokens),
        max_model_len=base.shape.context,
        tokens=list(tokens),
        token_strs=strings if body.return_token_strs else None,
    )


@router.post("/detokenize")
def detokenize(body: DetokenizeRequest, parts: State, who: ModelUser) -> DetokenizeAnswer:
    """The text of token ids, special tokens included."""
    check_text(body.tokens, parts, param="tokens")
    model = resolve_model(parts, who, body.model)
    check_ids(body.tokens, model, param="tokens")
    text = model.base.tokenizer.decode(body.tokens, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    return DetokenizeAnswer(prompt=str(text))


@router.get("/tokenizer_info")
def tokenizer_info(
    parts: State, who: ModelUser, model: Annotated[str, Query(min_length=1, max_length=200)]
) -> TokenizerInfo:
    """The tokenizer behind a model."""
    found = resolve_model(parts, who, model)
    base = found.base
    return TokenizerInfo(
        model=model,
        base_model=found.base_id,
        tokenizer_class=type(base.tokenizer).__name__,
        vocab_size=base.shape.vocab_size,
        max_model_len=base.shape.context,
        bos_token_id=base.bos_id,
        eos_token_id=base.eos_id,
        bos_is_added=has_bos(base),
        chat_template=bool(getattr(base.tokenizer, "chat_template", None)),
    )


def check_text(text: str | Sequence[int], parts: Parts, *, param: str) -> None:
    """Raises TooLarge for a text, or a list of token ids, longer than `SOUP_MAX_TEXT_CHARS`."""
    limit = parts.settings.max_text_chars
    if len(text) > limit:
        what = "characters" if isinstance(text, str) else "token ids"
        raise TooLarge(f"'{param}' has {len(text)} {what}; at most {limit} are taken.", param=param)


def check_ids(tokens: list[int], model: ResolvedModel, *, param: str) -> None:
    """Raises InvalidParameter for an id the vocabulary does not have."""
    size = model.base.shape.vocab_size
    if any(not 0 <= token < size for token in tokens):
        raise InvalidParameter(f"'{param}' holds an id outside of the vocabulary (0 to {size - 1}).", param=param)
