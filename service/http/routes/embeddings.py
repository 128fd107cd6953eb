"""`POST /v1/embeddings`: the vectors that samples are embedded with, mean-pooled last hidden states of a base model.

Token ids are embedded as they are, and so exactly as the text whose ids `/tokenize` gives; whether a list begins with a
BOS is seen by its first id.
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
from service.http.answers.streaming import finish
from service.http.app_parts import AppServices
from service.http.models.inference_limits import check_ids, check_texts
from service.http.models.metering import admit, answer_headers
from service.http.models.named_models import ResolvedModel, resolve_model
from service.http.requests.bodies import CheckedRoute
from service.http.requests.body_limits import TEXTS, takes
from service.http.schemas.embeddings import Embedding, EmbeddingAnswer, EmbeddingRequest
from service.http.schemas.wire import Usage
from service.http.security.auth import ModelUser
from service.http.thread_turns import in_thread
from service.parts import Services

router = APIRouter(tags=["inference"], route_class=CheckedRoute)


@router.post("/v1/embeddings", response_model=EmbeddingAnswer)
@takes(TEXTS)
async def embeddings(request: Request, body: EmbeddingRequest, services: AppServices, principal: ModelUser) -> Response:
    """One vector per text, or per list of token ids. Padding and the BOS (an encoder's CLS) are left out of the mean; a
    text beyond the context is refused.
    """
    model, rows, asked = await in_thread(_prepare, request, services, principal, body)
    scores = await finish(request, services.engine, asked)
    answer = await in_thread(_answer, body, rows, asked, scores)
    return JSONResponse(answer, headers=answer_headers(request, model))


def _prepare(
    request: Request, services: Services, principal: Principal, body: EmbeddingRequest
) -> tuple[ResolvedModel, list[Row], list[ScoreRequest]]:
    """What is embedded, and the requests to the engine: one for rows that begin with a BOS, one for the others."""
    inputs = body.inputs
    if not inputs:
        raise InvalidParameter("'input' holds no text.", param="input")
    check_texts(inputs, services.settings, param="input")
    services.engine.check_place(principal.key_id, here=True)  # what is refused costs nobody else's time
    model = resolve_model(services, principal, body.model)
    if model.row is not None:
        raise InvalidParameter(
            f"Embeddings are the base model's; ask for 'base/{model.base_id}' to embed as samples are.", param="model"
        )
    if body.dimensions not in {None, model.base.shape.hidden_size}:
        raise InvalidParameter(
            f"Vectors of this model have {model.base.shape.hidden_size} dimensions.", param="dimensions"
        )
    rows = [_row(model, given, number) for number, given in enumerate(inputs)]
    asked = []
    for front in (True, False):
        windows = tuple(row.ids for row in rows if row.front == front)
        if windows:
            pooled = frozenset(range(len(windows)))
            asked.append(ScoreRequest(model.base_id, windows, pooled=pooled, bos=front, owner=principal.key_id))
    return model, rows, admit(request, services, principal, [(model, one) for one in asked])


@dataclass(frozen=True)
class Row:
    """Token ids of one input; `front` says that they begin with a BOS, which is left out of the mean."""

    ids: tuple[int, ...]
    front: bool


def _row(model: ResolvedModel, given: str | list[int], number: int) -> Row:
    """A text or token ids as they are embedded; raises InvalidPrompt and InvalidParameter."""
    base, context = model.base, model.base.shape.context
    if isinstance(given, str):
        row = Row((*base.tokenize(given), *closing_tokens(base)), has_bos(base))
        if len(row.ids) <= row.front + len(closing_tokens(base)):
            raise empty_text_error(base, number, given)
    else:
        check_ids(given, model, param=f"input.{number}")
        row = Row(tuple(given), has_bos(base) and given[0] == base.bos_id)
        if len(row.ids) <= row.front:
            raise InvalidPrompt(f"Text {number} holds nothing but the BOS.", param=f"input.{number}")
    if len(row.ids) > context:
        raise InvalidPrompt(
            f"Text {number} has {len(row.ids)} tokens; the context is {context}.", param=f"input.{number}"
        )
    return row


def _answer(
    body: EmbeddingRequest, rows: Sequence[Row], asked: Sequence[ScoreRequest], scores: Sequence[Scores]
) -> dict[str, Any]:
    found = {one.bos: iter(sorted(of.vectors.items())) for one, of in zip(asked, scores, strict=True)}
    data = [
        Embedding(index=index, embedding=_vector(next(found[row.front])[1], body.encoding_format))
        for index, row in enumerate(rows)
    ]
    read = sum(len(row.ids) for row in rows)
    answer = EmbeddingAnswer(model=body.model, data=data, usage=Usage(prompt_tokens=read, total_tokens=read))
    return answer.model_dump(exclude_none=True)


def _vector(vector: np.ndarray, encoding: str) -> list[float] | str:
    """Little-endian float32 as base64, or the same floats as numbers."""
    exact = np.ascontiguousarray(vector, dtype="<f4")
    if encoding == "base64":
        return base64.b64encode(exact.tobytes()).decode()
    return [float(value) for value in exact]
