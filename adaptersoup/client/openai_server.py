"""An OpenAI-compatible server that is examined, not trusted: its models, and its next tokens after a probe's texts.

Called by `soup doctor`. Every exchange has a deadline and a maximum of bytes. Redirects are not followed, and the only
key sent is the one for this server.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import httpx2
from pydantic import BaseModel, ValidationError

from adaptersoup.client.http_options import key_header
from registry.errors import Unavailable
from registry.names import LOOPBACK
from registry.spec import SERVER_TOKENS, NextTokens, Readings

MAX_BYTES = 4 * 1024 * 1024
"""Of an answer: some hundred times as much as one to a probe takes."""
MAX_MODELS = 1000
MOST = 20
"""Tokens of one answer that are sent on."""
LEAST = -1e4
"""The least log-probability that is sent on; some servers write minus infinity as -9999."""
SHOWN = 200
"""Characters of a server's own words that an error shows."""


class _Model(BaseModel):
    id: str


class _Models(BaseModel):
    data: list[_Model] = []


class _Token(BaseModel):
    token: str
    logprob: float


class _Place(BaseModel):
    top_logprobs: list[_Token] = []


class _Logprobs(BaseModel):
    """Log-probabilities in the form of completions (vLLM, SGLang) or, in `content`, of chats (llama-server)."""

    top_logprobs: list[dict[str, float]] | None = None
    content: list[_Place] | None = None

    def next_tokens(self) -> NextTokens:
        """The next tokens that are sent on; empty if there are none."""
        chat = [{row.token: row.logprob for row in place.top_logprobs} for place in self.content or ()]
        first = next(iter(self.top_logprobs or chat), {})
        usable = [token for token in first if 0 < len(token) <= SHOWN and "\x00" not in token]
        return {token: min(0.0, max(LEAST, first[token])) for token in usable[:MOST]}


class _Choice(BaseModel):
    index: int | None = None
    logprobs: _Logprobs | None = None


class _Completion(BaseModel):
    choices: list[_Choice]


Answer = TypeVar("Answer", bound=BaseModel)


@dataclass(frozen=True)
class OpenAIServer:
    """The server at `url`, with or without `/v1`; an exchange takes at most `seconds`. `transport` is for tests."""

    url: str
    key: str | None = field(default=None, repr=False)
    seconds: float = 120.0
    transport: httpx2.AsyncBaseTransport | None = None

    def __post_init__(self) -> None:
        """Raises InvalidParameter for a key that a header cannot carry."""
        key_header(self.key)

    @property
    def root(self) -> str:
        """The address below which the calls are."""
        return self.url.rstrip("/").removesuffix("/v1")

    def models(self) -> list[str]:
        """The names of its models, the first thousand; raises Unavailable."""
        models = self._answer(_Models, "GET", "/v1/models").data
        if not models:
            raise self._problem("lists no models: name them with --model")
        return [model.id for model in models[:MAX_MODELS]]

    def next_tokens(self, model: str, texts: Sequence[str]) -> Readings:
        """The most likely next tokens after each text; raises Unavailable with one sentence for any other answer."""
        request = {"model": model, "prompt": list(texts), "max_tokens": 1, "temperature": 0, "logprobs": SERVER_TOKENS}
        choices = self._answer(_Completion, "POST", "/v1/completions", request).choices
        if len(choices) != len(texts):
            raise self._problem(f"gives {len(choices)} answers to {len(texts)} prompts of {model[:SHOWN]!r}")
        if all(choice.index is not None for choice in choices):
            choices.sort(key=lambda choice: choice.index or 0)
        readings = tuple({} if choice.logprobs is None else choice.logprobs.next_tokens() for choice in choices)
        if not all(readings):
            raise self._problem(f"gives no log-probabilities with the answers of {model[:SHOWN]!r}")
        return readings

    def _answer(self, kind: type[Answer], method: str, path: str, body: Mapping[str, Any] | None = None) -> Answer:
        """The answer to a request, which is JSON of this kind."""
        status, data = asyncio.run(self._exchange(method, path, body))
        if status != httpx2.codes.OK:
            reason = " ".join(data.decode(errors="replace").split())[:SHOWN]
            raise self._problem(f"answers {method} {path} with status {status} ({reason})")
        try:
            return kind.model_validate_json(data)
        except ValidationError:
            raise self._problem(f"answers {method} {path} with something else than OpenAI's API") from None

    async def _exchange(self, method: str, path: str, body: Mapping[str, Any] | None) -> tuple[int, bytes]:
        """The status and the bytes of an answer, which may not be compressed: a few bytes could become many."""
        headers = {"accept-encoding": "identity", **key_header(self.key)}
        data = bytearray()
        try:
            async with (
                asyncio.timeout(self.seconds),
                httpx2.AsyncClient(  # a proxy of the environment cannot reach this machine's loopback
                    timeout=None, transport=self.transport, trust_env=httpx2.URL(self.root).host not in LOOPBACK
                ) as client,
                client.stream(method, self.root + path, json=body, headers=headers) as response,
            ):
                if response.headers.get("content-encoding", "identity") != "identity":
                    raise self._problem(f"answers {method} {path} compressed, which it was not asked for")
                async for chunk in response.aiter_bytes():
                    data += chunk
                    if len(data) > MAX_BYTES:
                        raise self._problem(f"answers {method} {path} with more than {MAX_BYTES} bytes")
                return response.status_code, bytes(data)
        except TimeoutError:
            raise self._problem(
                f"did not finish answering {method} {path} in {self.seconds:g} seconds; --seconds gives it longer"
            ) from None
        except (httpx2.HTTPError, httpx2.InvalidURL, ImportError, ValueError) as error:  # the last two: of a proxy
            reason = str(error)[:SHOWN] or type(error).__name__
            raise self._problem(f"cannot be asked for {method} {path} ({reason})") from None

    def _problem(self, predicate: str) -> Unavailable:
        address = self.root.rpartition("@")[2]  # without a user's name and password
        return Unavailable(f"The server {address} {predicate}.", param="url")
