"""What a client asks of models: which there are, perplexity, text, vectors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from service.client.answers import given, part
from service.client.steps import Json, Steps, Streamed, data_of, json_of, streamed

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"


def models() -> Steps[list[Json]]:
    """What `model` may be: base models and adapters, in OpenAI's list."""
    return (yield from data_of("GET", "/v1/models"))


def base_model(base_id: str) -> Steps[Json]:
    """A base model by its id, with how it is built. Raises NotFound for one that the server does not have."""
    return (yield from json_of("GET", f"/v1/models/{part(base_id)}"))


def perplexity(model: str, texts: Sequence[str], *, baseline: str | None = None) -> Steps[Json]:
    """Perplexity of texts under a model, beside a baseline's with the paired standard error."""
    body = {"model": model, "texts": list(texts), "baseline": baseline}
    return (yield from json_of("POST", "/v1/perplexity", json=given(body)))


def complete(model: str, prompt: str, **sampling: Any) -> Steps[Json]:
    """A text completion, in OpenAI's shape; `sampling` holds max_tokens, temperature, top_p, n, stop, seed ..."""
    return (yield from json_of("POST", COMPLETIONS, json={"model": model, "prompt": prompt, **given(sampling)}))


def stream(model: str, prompt: str, **sampling: Any) -> Streamed[Json]:
    """A text completion in chunks, as they are generated; closing it ends it on the server too."""
    return streamed(COMPLETIONS, {"model": model, "prompt": prompt, **given(sampling), "stream": True})


def chat(model: str, messages: Sequence[Mapping[str, str]], **sampling: Any) -> Steps[Json]:
    """A chat completion, in OpenAI's shape; `messages` are {role, content}, the last one is answered."""
    return (yield from json_of("POST", CHAT, json={"model": model, "messages": list(messages), **given(sampling)}))


def stream_chat(model: str, messages: Sequence[Mapping[str, str]], **sampling: Any) -> Streamed[Json]:
    """A chat completion in chunks, as they are generated; closing it ends it on the server too."""
    return streamed(CHAT, {"model": model, "messages": list(messages), **given(sampling), "stream": True})


def embed(model: str, texts: str | Sequence[str]) -> Steps[Json]:
    """The vectors of one text or several, as samples are embedded: of a base model, in OpenAI's shape."""
    given_texts = texts if isinstance(texts, str) else list(texts)
    return (yield from json_of("POST", "/v1/embeddings", json={"model": model, "input": given_texts}))
