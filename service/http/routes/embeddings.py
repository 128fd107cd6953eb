"""`POST /v1/embeddings`: mean-pooled last hidden states of a model; those of a base model alone embed samples.

Token ids are not changed, so the ids that `/tokenize` returns give the same vector as the text. The first id shows if a
list begins with a BOS.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from registry.errors import InvalidParameter, InvalidPrompt
from service.access.keys import Principal
from service.engine import ScoreRequest, Scores
from service.engine.text_calls import closing_tokens, empty_text_error, has_bos
from service.engine.text_support import check_supports_text, text_capacity
from service.http.answers.streaming import finish
from service.http.app_services import AppServices
from service.http.models.inference_limits import check_ids, check_texts
from service.http.models.metering import admit, answer_headers
from service.http.models.named_models import ResolvedModel, model_or_mixture
from service.http.requests.bodies import CheckedRoute
from service.http.requests.body_limits import TEXTS_OR_IDS, takes
from service.http.schemas.embeddings import Embedding, EmbeddingAnswer, EmbeddingRequest
from service.http.schemas.wire import Usage
from service.http.security.auth import ModelUser
from service.http.thread_turns import in_thread
from service.services import Services

router = APIRouter(tags=["inference"], route_class=CheckedRoute)


@router.post("/v1/embeddings", response_model=EmbeddingAnswer)
@takes(TEXTS_OR_IDS)
async def embeddings(request: Request, body: EmbeddingRequest, services: AppServices, principal: ModelUser) -> Response:
    """One vector for each text or list of token ids.

    The mean excludes padding and the BOS (an encoder's CLS). A text that exceeds the context is refused.
    """
    model, rows, requests = await in_thread(_prepare, request, services, principal, body)
    scores = await finish(request, services.engine, requests)
    answer = await in_thread(_answer, body, model, rows, requests, scores)
    return JSONResponse(answer, headers=answer_headers(request, model))


def _prepare(
    request: Request, services: Services, principal: Principal, body: EmbeddingRequest
) -> tuple[ResolvedModel, list[Row], list[ScoreRequest]]:
    """Return model, inputs, and requests to the engine: one for inputs that begin with a BOS, one for the others."""
    inputs = body.inputs
    if not inputs:
        raise InvalidParameter("'input' holds no text.", param="input")
    check_texts(inputs, services.settings, param="input")
    services.engine.check_admission(principal.key_id, local=True)  # what is refused costs nobody else's time
    model = model_or_mixture(services, principal, body.model, body.adapters)
    _check_embeds(model)
    if body.dimensions not in {None, model.base.shape.hidden_size}:
        raise InvalidParameter(
            f"Vectors of this model have {model.base.shape.hidden_size} dimensions.", param="dimensions"
        )
    rows = [_row(model, text, number) for number, text in enumerate(inputs)]
    requests = []
    for front in (True, False):
        windows = tuple(row.ids for row in rows if row.front == front)
        if windows:
            pooled = frozenset(range(len(windows)))
            requests.append(ScoreRequest(model.base_id, windows, pooled=pooled, bos=front, owner=principal.key_id))
    return model, rows, admit(request, services, principal, [(model, score_request) for score_request in requests])


def _check_embeds(model: ResolvedModel) -> None:
    """Raise InvalidParameter for adapters of an encoder, and for those that the server does not run."""
    if model.config is None:
        return
    if model.base.shape.kind == "encoder":
        raise InvalidParameter(
            f"'{model.name}' is an adapter of an encoder, which embeds texts without adapters only: ask for "
            f"'base/{model.base_id}'.",
            param="model",
        )
    check_supports_text(model.base.shape, model.config, f"'{model.name}'")


@dataclass(frozen=True)
class Row:
    """Token ids of one input; with `front` they begin with a BOS, which is excluded from the mean."""

    ids: tuple[int, ...]
    front: bool


def _row(model: ResolvedModel, text: str | list[int], number: int) -> Row:
    """Tokenise the input of index `number`, a text or token ids; raises InvalidPrompt and InvalidParameter."""
    base, context = model.base, text_capacity(model.base.shape, model.config)
    if isinstance(text, str):
        row = Row((*base.tokenize(text), *closing_tokens(base)), has_bos(base))
        if len(row.ids) <= row.front + len(closing_tokens(base)):
            raise empty_text_error(base, number, text)
    else:
        check_ids(text, model, param=f"input.{number}")
        row = Row(tuple(text), has_bos(base) and text[0] == base.bos_id)
        if row.ids[row.front :] in {(), closing_tokens(base)}:
            raise InvalidPrompt(f"Text {number} is empty but for special tokens.", param=f"input.{number}")
    if len(row.ids) > context:
        raise InvalidPrompt(
            f"Text {number} has {len(row.ids)} tokens; the context is {context}.", param=f"input.{number}"
        )
    return row


def _answer(
    body: EmbeddingRequest,
    model: ResolvedModel,
    rows: Sequence[Row],
    requests: Sequence[ScoreRequest],
    scores: Sequence[Scores],
) -> dict[str, Any]:
    vectors = {
        request.bos: iter([vector for _, vector in sorted(result.vectors.items())])
        for request, result in zip(requests, scores, strict=True)
    }
    data = [
        Embedding(index=index, embedding=_encode(next(vectors[row.front]), body.encoding_format))
        for index, row in enumerate(rows)
    ]
    tokens = sum(len(row.ids) for row in rows)
    answer = EmbeddingAnswer(model=model.name, data=data, usage=Usage(prompt_tokens=tokens, total_tokens=tokens))
    return answer.model_dump(exclude_none=True)


def _encode(vector: np.ndarray, encoding: str) -> list[float] | str:
    """Return a vector as numbers, or as base64 of little-endian float32."""
    exact = np.ascontiguousarray(vector, dtype="<f4")
    if encoding == "base64":
        return base64.b64encode(exact.tobytes()).decode()
    return [float(value) for value in exact]
