"""The bytes of answers: the order of keys, null and absent fields, floats, other alphabets.

The engine is replaced by one that gives prepared tokens, so that nothing depends on a model's floats.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

import numpy as np
import pytest

from service.engine import (
    Completion,
    Delta,
    GenerateRequest,
    Generation,
    PromptScores,
    ScoreRequest,
    Scores,
    Ticket,
)
from tests.repository import REPOSITORY
from tests.service.servers import World

RECORDED = REPOSITORY / "tests" / "fixtures" / "answers.txt"
"""Per answer: path and body of the request, the status, the body's lines. # stands for id, time and fingerprint."""
TEMPLATES = {"tiny": "{% for m in messages %}{{ m['content'] }}{% endfor %}"}


@pytest.fixture
def ids(world: World) -> tuple[int, int, int]:
    """The two halves of "é", and "q"."""
    token_ids = world.runtime.bases["tiny"].text.tokenizer.convert_tokens_to_ids(["Ã", "©", "q"])
    assert None not in token_ids
    return tuple(token_ids)


@pytest.fixture(autouse=True)
def prepared(world: World, monkeypatch: pytest.MonkeyPatch, ids: tuple[int, int, int]) -> None:
    """An engine that answers "éq" to everything, with log-probabilities where they are asked for."""
    first, second, third = ids
    tokens = [
        Delta(0, first, "", 0, logprob=-1e-05, top=((first, -1e-05), (third, -12.5))),
        Delta(0, second, "é", 0, logprob=-0.1, top=((third, -0.05),)),
        Delta(0, third, "q", 1, logprob=-1.4142135623730951, top=(), finish_reason="length"),
    ]

    def generation(request: GenerateRequest) -> Generation:
        with_logprobs = request.params.logprobs is not None
        whole = Completion(
            token_ids=tuple(token.token_id for token in tokens),
            text="éq",
            finish_reason="length",
            token_logprobs=tuple(token.logprob or 0.0 for token in tokens) if with_logprobs else (),
            top_logprobs=tuple(token.top for token in tokens) if with_logprobs else (),
            text_offsets=tuple(token.offset for token in tokens),
        )
        if request.params.max_tokens == 0:
            whole = Completion(token_ids=(), text="", finish_reason="length")
        scores = None
        if request.params.prompt_logprobs:
            size = len(request.prompt) - 1
            scores = PromptScores((None, *[-2.0] * size), (None, *[((third, -0.25),)] * size))
        return Generation((whole,) * request.params.n, scores)

    def submit_all(requests: Sequence[GenerateRequest | ScoreRequest]) -> list[Ticket]:
        tickets = []
        for request in requests:
            ticket = Ticket(1)
            if isinstance(request, ScoreRequest):
                vectors = {row: np.array([0.1, -3.0], np.float32) for row in request.pooled}
                ticket.set_result(Scores(nll=tuple(0.7 for _ in request.windows), vectors=vectors))
            else:
                if request.on_token is not None and request.params.max_tokens != 0:
                    for token in tokens:
                        request.on_token(token)
                ticket.set_result(generation(request))
            tickets.append(ticket)
        return tickets

    monkeypatch.setattr(world.runtime.engine, "submit_all", submit_all)


@pytest.mark.parametrize(
    "recorded", RECORDED.read_text("utf-8").strip().split("\n\n"), ids=lambda text: text.split("\n")[0]
)
def test_every_byte_is_what_it_was(world: World, recorded: str) -> None:
    request_line, *lines = recorded.splitlines()
    path, _, body = request_line.partition(" ")
    answer = world.client.post(path, json={"model": "tiny", **json.loads(body)})
    masked = re.sub(r'(cmpl-)[0-9a-f]{32}|("created": ?)\d+|(sha256:)[0-9a-f]{64}', r"\1\2\3#", answer.text)
    assert [str(answer.status_code), *(line for line in masked.splitlines() if line)] == lines
