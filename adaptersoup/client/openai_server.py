"""An OpenAI-compatible server that is examined, not trusted: its models, and its next tokens after a probe's texts.

Called by `soup doctor`. Every exchange has a deadline and a maximum of bytes. Redirects are not followed, and the only
key sent is the one for this server.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx2

from registry.errors import Unavailable
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


@dataclass(frozen=True)
class OpenAIServer:
    """The server at `url`, with or without `/v1`; an exchange takes at most `seconds`. `transport` is for tests."""

    url: str
    key: str | None = field(default=None, repr=False)
    seconds: float = 120.0
    transport: httpx2.AsyncBaseTransport | None = None

    @property
    def root(self) -> str:
        """The address below which the calls are."""
        return self.url.rstrip("/").removesuffix("/v1")

    def models(self) -> list[str]:
        """The names of its models, the first thousand; raises Unavailable."""
        rows = self._answer("GET", "/v1/models").get("data")
        if not isinstance(rows, list):
            raise self._problem("lists no models: name them with --model")
        names = [row["id"] for row in rows if isinstance(row, dict) and isinstance(row.get("id"), str)]
        return names[:MAX_MODELS]

    def next_tokens(self, model: str, texts: Sequence[str]) -> Readings:
        """The most likely next tokens after each text; raises Unavailable with one sentence for any other answer."""
        request = {"model": model, "prompt": list(texts), "max_tokens": 1, "temperature": 0, "logprobs": SERVER_TOKENS}
        choices = self._answer("POST", "/v1/completions", request).get("choices")
        if not isinstance(choices, list) or len(choices) != len(texts):
            count = len(choices) if isinstance(choices, list) else 0
            raise self._problem(f"gives {count} answers to {len(texts)} prompts of {model[:SHOWN]!r}")
        ordered = sorted(enumerate(choices), key=lambda pair: _index(pair[1], pair[0]))
        readings = tuple(_next_tokens(choice) for _, choice in ordered)
        if not all(readings):
            raise self._problem(f"gives no log-probabilities with the answers of {model[:SHOWN]!r}")
        return readings

    def _answer(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The JSON object of an answer."""
        status, data = asyncio.run(self._exchange(method, path, body))
        try:
            value = json.loads(data)
        except (ValueError, RecursionError):
            value = None
        if status != httpx2.codes.OK:
            raise self._problem(f"answers {method} {path} with status {status}{_reason(value)}")
        if not isinstance(value, dict):
            raise self._problem(f"answers {method} {path} with something else than a JSON object")
        return value

    async def _exchange(self, method: str, path: str, body: Mapping[str, Any] | None) -> tuple[int, bytes]:
        """The status and the bytes of an answer, which may not be compressed: a few bytes could become many."""
        headers = {"accept-encoding": "identity"} | (
            {} if self.key is None else {"authorization": f"Bearer {self.key}"}
        )
        data = bytearray()
        try:
            async with (
                asyncio.timeout(self.seconds),
                httpx2.AsyncClient(timeout=None, transport=self.transport) as client,
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
        except (httpx2.HTTPError, httpx2.InvalidURL, UnicodeError) as error:
            reason = str(error)[:SHOWN] or type(error).__name__
            raise self._problem(f"cannot be asked for {method} {path} ({reason})") from None

    def _problem(self, predicate: str) -> Unavailable:
        address = self.root.rpartition("@")[2]  # without a user's name and password
        return Unavailable(f"The server {address} {predicate}.", param="url")


def _index(choice: object, position: int) -> int:
    """The number of the prompt that a choice answers; its position where the server does not say."""
    index = choice.get("index") if isinstance(choice, dict) else None
    return index if isinstance(index, int) else position


def _next_tokens(choice: object) -> NextTokens:
    """The next tokens of a choice, in the form of completions or of chats; empty if there are none.

    vLLM and SGLang answer completions as OpenAI does, llama-server in the form that OpenAI has for chats.
    """
    logprobs = choice.get("logprobs") if isinstance(choice, dict) else None
    if not isinstance(logprobs, dict):
        return {}
    top, content = logprobs.get("top_logprobs"), logprobs.get("content")
    if isinstance(top, list) and top and isinstance(top[0], dict):
        pairs = list(top[0].items())
    elif isinstance(content, list) and content and isinstance(content[0], dict):
        rows = content[0].get("top_logprobs")
        rows = rows if isinstance(rows, list) else []
        pairs = [(row.get("token"), row.get("logprob")) for row in rows if isinstance(row, dict)]
    else:
        return {}
    return {token: min(0.0, max(float(value), LEAST)) for token, value in pairs[:MOST] if _is_reading(token, value)}


def _is_reading(token: object, value: object) -> bool:
    is_token = isinstance(token, str) and 0 < len(token) <= SHOWN and "\x00" not in token
    if not is_token or isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return not math.isnan(value)
    except OverflowError:  # an integer of hundreds of digits
        return False


def _reason(value: object) -> str:
    """The words of a server about a refusal, in brackets, on one line."""
    error = value.get("error", value) if isinstance(value, dict) else None
    message = error.get("message") if isinstance(error, dict) else error
    return f" ({' '.join(message.split())[:SHOWN]})" if isinstance(message, str) and message else ""
