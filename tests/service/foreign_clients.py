"""A process with LangChain or LiteLLM, pointed at a server: what each of its calls gave, as JSON.

Its own process, for LiteLLM changes the settings of other libraries when it is imported, and warns of its own past.
Run as a program it is that process; `ask` is the tests' end of it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel

REPOSITORY = Path(__file__).parents[2]
HELLO = "The fox?"
TEXTS = ["The court held that the contract was void.", "Heat the oil."]


class Dish(BaseModel):
    """The form of an answer in JSON."""

    name: Literal["soup", "stew"]


def ask(client: str, url: str, key: str, **more: Any) -> dict[str, Any]:
    """The results of all calls of a client, by their names below."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(REPOSITORY),
        "OMP_NUM_THREADS": "1",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "LANGSMITH_TRACING": "false",
    }
    done = subprocess.run(
        [sys.executable, "-W", "ignore", __file__, client, url, key, json.dumps(more)],
        cwd=REPOSITORY,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    results: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return results


def failure(call: Callable[[], object]) -> list[Any]:
    """The status of an error, and its words."""
    try:
        call()
    except Exception as error:
        return [getattr(error, "status_code", None), str(error)]
    return [None, "no error"]


def langchain(url: str, key: str, *, model: str) -> dict[str, Any]:
    from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings

    of: dict[str, Any] = {"base_url": url, "api_key": key, "max_retries": 0}
    chat = ChatOpenAI(model=model, temperature=0, max_tokens=6, **of)
    embeddings = OpenAIEmbeddings(model="base/tiny", check_embedding_ctx_length=False, **of)
    form = ChatOpenAI(model=model, temperature=2, seed=1, max_tokens=40, **of).with_structured_output(
        Dish, method="json_schema"
    )
    dish: Any = form.invoke(HELLO)
    answer = chat.invoke([("system", "Be brief."), ("user", HELLO)])
    return {
        "chat": answer.content,
        "usage": dict(answer.usage_metadata or {}),
        "digest": answer.response_metadata["system_fingerprint"],
        "stream": [chunk.content for chunk in chat.stream([("system", "Be brief."), ("user", HELLO)])],
        "completion": OpenAI(model=model, temperature=0, max_tokens=6, **of).invoke(HELLO),
        "embeddings": embeddings.embed_documents(TEXTS),
        "query": embeddings.embed_query(TEXTS[1]),
        "form": dish.name,
        "no model": failure(lambda: ChatOpenAI(model="team/gone", **of).invoke(HELLO)),
        "no key": failure(lambda: ChatOpenAI(model=model, **{**of, "api_key": "sk-soup-wrong"}).invoke(HELLO)),
        "too long": failure(lambda: chat.invoke(HELLO * 200)),
    }


def litellm(url: str, key: str, *, model: str, ids: list[list[int]]) -> dict[str, Any]:
    import litellm

    litellm.suppress_debug_info = True
    of: dict[str, Any] = {"api_base": url, "api_key": key, "max_retries": 0}
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": HELLO}]
    drawn: dict[str, Any] = {"model": f"openai/{model}", "temperature": 0, "max_tokens": 6, **of}
    answer: Any = litellm.completion(messages=messages, **drawn)
    text: Any = litellm.text_completion(prompt=HELLO, **{**drawn, "model": f"text-completion-openai/{model}"})
    base = {"model": "openai/base/tiny", **of}
    varied = {"temperature": 100, "seed": 1, "max_tokens": 40}  # greedy, a tiny model indents without end
    form: Any = litellm.completion(messages=messages[1:], response_format=Dish, **{**drawn, **varied})
    stream: Any = litellm.completion(messages=messages, stream=True, **drawn)
    return {
        "chat": answer.choices[0].message.content,
        "usage": {
            "input_tokens": answer.usage.prompt_tokens,
            "output_tokens": answer.usage.completion_tokens,
            "total_tokens": answer.usage.total_tokens,
        },
        "digest": answer.system_fingerprint,
        "stream": [chunk.choices[0].delta.content or "" for chunk in stream],
        "completion": text.choices[0].text,
        "embeddings": [embedding["embedding"] for embedding in litellm.embedding(input=TEXTS, **base).data],
        "ids": [embedding["embedding"] for embedding in litellm.embedding(input=ids, **base).data],
        "form": json.loads(form.choices[0].message.content)["name"],
        "no model": failure(lambda: litellm.completion(messages=messages, **{**drawn, "model": "openai/team/gone"})),
        "no key": failure(lambda: litellm.completion(messages=messages, **{**drawn, "api_key": "sk-soup-wrong"})),
        "too long": failure(lambda: litellm.completion(messages=[{"role": "user", "content": HELLO * 200}], **drawn)),
    }


if __name__ == "__main__":
    name, url, key, more = sys.argv[1:]
    sys.stdout.write(
        json.dumps({"langchain": langchain, "litellm": litellm}[name](url, key, **json.loads(more))) + "\n"
    )
