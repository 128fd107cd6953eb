"""LangChain and LiteLLM against the real server give what the `openai` client gives: chat, streams, vectors, errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.service.foreign_clients import HELLO, TEXTS, ask
from tests.service.http.test_openai_chat import TEMPLATE
from tests.service.http.test_openai_client import ids_of
from tests.service.servers import Live

pytestmark = [pytest.mark.interop, pytest.mark.slow, pytest.mark.long]
SETTINGS = {"engine_share_prompts": "off"}  # answers to one prompt are compared to the last bit and token
TEMPLATES = {"tiny": TEMPLATE}
MODEL = "team/cooking@1"
MESSAGES: list[Any] = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": HELLO}]


@pytest.fixture(scope="module")
def digest(live: Live) -> str:
    return str(live.world.push("team/cooking", seed=5)["digest"])


@pytest.mark.parametrize("client", ["langchain", "litellm"])
def test_what_its_users_call_works(live: Live, digest: str, client: str) -> None:
    more = {"ids": [ids_of(live, text) for text in TEXTS]} if client == "litellm" else {}
    answers = ask(client, f"{live.url}/v1", live.world.admin, model=MODEL, **more)
    openai = live.openai()
    chat = openai.chat.completions.create(model=MODEL, messages=MESSAGES, temperature=0, max_tokens=6)
    assert answers["chat"] == chat.choices[0].message.content
    assert "".join(answers["stream"]) == answers["chat"]
    assert answers["digest"] == digest
    assert (
        answers["usage"].items()
        >= {
            "input_tokens": chat.usage.prompt_tokens,
            "output_tokens": chat.usage.completion_tokens,
            "total_tokens": chat.usage.total_tokens,
        }.items()
    )
    plain = openai.completions.create(model=MODEL, prompt=HELLO, temperature=0, max_tokens=6)
    assert answers["completion"] == plain.choices[0].text
    vectors = [entry.embedding for entry in openai.embeddings.create(model="base/tiny", input=TEXTS).data]
    np.testing.assert_allclose(answers["embeddings"], vectors, atol=1e-6)
    same = {"langchain": vectors[1], "litellm": vectors}[client]
    np.testing.assert_allclose(answers[{"langchain": "query", "litellm": "ids"}[client]], same, atol=1e-6)
    assert answers["form"] in {"soup", "stew"}
    for case, status, words in (
        ("no model", 404, "team/gone"),
        ("no key", 401, "Authorization"),
        ("too long", 400, "context"),
    ):
        assert answers[case][0] == status, answers[case]
        assert words in answers[case][1]
