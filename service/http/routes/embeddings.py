"""`POST /v1/embeddings`: the vectors that samples are embedded with, mean-pooled last hidden states of a base model."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import numpy as np
from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from registry.errors import InvalidParameter, InvalidPrompt
from service.engine import ScoreRequest, Scores
from service.engine.texts import closing, has_bos, nothing_to_embed
from service.http.app_parts import AppParts
from service.http.auth import ModelUser
from service.http.bodies import CheckedRoute
from service.http.body_limits import TEXTS, takes
from service.http.inference_limits import check_texts
from service.http.metering import admit, answer_headers
from service.http.named_models import ResolvedModel, resolve_model
from service.http.schemas.embeddings import Embedding, EmbeddingAnswer, EmbeddingRequest
from service.http.schemas.wire import Usage
from service.http.streaming import finish
from service.http.thread_turns import in_thread
from service.keys import Principal
from service.parts import Parts

router = APIRouter(tags=["inference"], route_class=CheckedRoute)


@router.post("/v1/embeddings", response_model=EmbeddingAnswer)
@takes(TEXTS)
async def embeddings(request: Request, body: EmbeddingRequest, parts: AppParts, who: ModelUser) -> Response:
    """One vector per text. Padding and the BOS (an encoder's CLS) are left out of the mean; a text beyond the context
    is refused.
    """
    texts = [body.input] if isinstance(body.input, str) else body.input
    model, asked = await in_thread(_prepare, request, parts, who, body, texts)
    (scores,) = await finish(request, parts.engine, [asked])
    answer = await in_thread(_answer, body, asked, scores)
    return JSONResponse(answer, headers=answer_headers(request, model))


def _prepare(
    request: Request, parts: Parts, who: Principal, body: EmbeddingRequest, texts: Sequence[str]
) -> tuple[ResolvedModel, ScoreRequest]:
    if not texts:
        raise InvalidParameter("'input' holds no text.", param="input")
    check_texts(texts, parts.settings, param="input")
    parts.engine.check_place(who.key_id)  # what is refused costs nobody else's time
    model = resolve_model(parts, who, body.model)
    shape = model.base.shape
    if model.row is not None:
        raise InvalidParameter(
            f"Embeddings are the base model's; ask for 'base/{model.base_id}' to embed as samples are.", param="model"
        )
    if body.dimensions not in {None, shape.hidden_size}:
        raise InvalidParameter(f"Vectors of this model have {shape.hidden_size} dimensions.", param="dimensions")
    rows = [(*model.base.tokenize(text), *closing(model.base)) for text in texts]
    least = has_bos(model.base) + len(closing(model.base))
    for number, row in enumerate(rows):
        if len(row) <= least:
            raise nothing_to_embed(model.base, number, texts[number])
        if len(row) > shape.context:
            raise InvalidPrompt(
                f"Text {number} has {len(row)} tokens; the context is {shape.context}.", param=f"input.{number}"
            )
    pooled = frozenset(range(len(rows)))
    asked = ScoreRequest(model.base_id, tuple(rows), pooled=pooled, bos=has_bos(model.base), owner=who.key_id)
    (admitted,) = admit(request, parts, who, [(model, asked)])
    return model, admitted


def _answer(body: EmbeddingRequest, asked: ScoreRequest, scores: Scores) -> dict[str, Any]:
    read = sum(len(row) for row in asked.windows)
    data = [
        Embedding(index=index, embedding=_vector(scores.vectors[index], body.encoding_format))
        for index in range(len(asked.windows))
    ]
    answer = EmbeddingAnswer(model=body.model, data=data, usage=Usage(prompt_tokens=read, total_tokens=read))
    return answer.model_dump(exclude_none=True)


def _vector(vector: np.ndarray, encoding: str) -> list[float] | str:
    """Little-endian float32 as base64, or the same floats as numbers."""
    exact = np.ascontiguousarray(vector, dtype="<f4")
    if encoding == "base64":
        return base64.b64encode(exact.tobytes()).decode()
    return [float(value) for value in exact]
