"""`/tokenize`, `/detokenize` and `/tokenizer_info`, in the shapes of vLLM, which clients and harnesses know."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from registry.base_model import BaseText
from registry.base_model.chat_template import template_of
from service.engine.text_calls import closing_tokens, has_bos
from service.http.answers.token_text import TokenText
from service.http.app_services import AppServices
from service.http.models.inference_limits import check_ids, check_text
from service.http.models.named_models import resolve_model, sole_base
from service.http.requests.bodies import CheckedRoute
from service.http.requests.body_limits import ONE_TEXT, TOKEN_IDS, takes
from service.http.schemas.tokens import (
    DetokenizeAnswer,
    DetokenizeRequest,
    TokenizeAnswer,
    TokenizeRequest,
    TokenizerInfo,
)
from service.http.security.auth import ModelUser

router = APIRouter(tags=["inference"], route_class=CheckedRoute)


@router.post("/tokenize")
@takes(ONE_TEXT)
def tokenize(body: TokenizeRequest, services: AppServices, principal: ModelUser) -> TokenizeAnswer:
    """Token ids of a text, with the base's BOS (an encoder's CLS and SEP) unless `add_special_tokens` is false."""
    check_text(body.prompt, services.settings, param="prompt")
    base = resolve_model(services, principal, body.model or sole_base(services)).base
    tokens = base.tokenize(body.prompt, bos=None if body.add_special_tokens else False)
    if body.add_special_tokens:
        tokens += closing_tokens(base)
    strings = [str(base.tokenizer.convert_ids_to_tokens(token)) for token in tokens]
    return TokenizeAnswer(
        count=len(tokens),
        max_model_len=base.shape.context,
        tokens=tokens,
        token_strs=strings if body.return_token_strs else None,
    )


@router.post("/detokenize")
@takes(TOKEN_IDS)
def detokenize(body: DetokenizeRequest, services: AppServices, principal: ModelUser) -> DetokenizeAnswer:
    """The text of token ids, special tokens included."""
    check_text(body.tokens, services.settings, param="tokens")
    model = resolve_model(services, principal, body.model or sole_base(services))
    check_ids(body.tokens, model, param="tokens")
    text = model.base.tokenizer.decode(body.tokens, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    return DetokenizeAnswer(prompt=str(text))


@router.get("/tokenizer_info")
def tokenizer_info(
    services: AppServices,
    principal: ModelUser,
    model: Annotated[str | None, Query(min_length=1, max_length=200)] = None,
) -> TokenizerInfo:
    """The tokenizer of a model; `model` is optional if the server has one base model."""
    resolved = resolve_model(services, principal, model or sole_base(services))
    base = resolved.base
    return TokenizerInfo(
        model=resolved.name,
        base_model=resolved.base_id,
        tokenizer_class=type(base.tokenizer).__name__,
        vocab_size=base.shape.vocab_size,
        max_model_len=base.shape.context,
        bos_token_id=base.bos_id,
        eos_token_id=base.eos_id,
        bos_token=_special_token(base, base.bos_id),
        eos_token=_special_token(base, base.eos_id),
        pad_token=_special_token(base, base.tokenizer.pad_token_id),
        bos_is_added=has_bos(base),
        chat_template=template_of(base.tokenizer),
    )


def _special_token(base: BaseText, token: int | None) -> str | None:
    """Return the text of a special token."""
    return None if token is None else TokenText(base).decode([token])
