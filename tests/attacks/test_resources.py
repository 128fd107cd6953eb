"""Requests that cost more than they may: refused before it is spent, which is counted in bytes, values and jobs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

from tests.attacks.attack import Attack, Outcome, each
from tests.attacks.target import PASSAGES, Target
from tests.service.http.exchanges import Exchange

PIECE = 64 * 1024
READ_AT_MOST = 2 * 2**20 + PIECE
"""Bytes of a body of 64 MiB that may be read before it is refused."""
MODEL = "base/tiny"


def sized(name: str, tries: str, path: str, body: dict[str, Any], *, status: int, code: str, says: str = "") -> Attack:
    """A request whose size is the attack."""
    return Attack(name, tries, status, code, says, lambda target: target.post(path, body))


def body_of(piece: bytes) -> Iterator[bytes]:
    """64 MiB."""
    yield b"["
    for _ in range(1024):
        yield piece * (PIECE // len(piece))


def streamed(
    name: str,
    tries: str,
    piece: bytes,
    *,
    status: int = 413,
    code: str = "too_large",
    path: str = "/v1/keys",
    most: int = READ_AT_MOST,
    says: str = "",
    key: str | None = None,
    **headers: str,
) -> Attack:
    """A body of 64 MiB, of which at most so many bytes are read before it is refused."""

    def strike(target: Target) -> Outcome:
        secret = target.world.admin if key is None else target.keys[key]
        request = Exchange(body_of(piece), path=path, authorization=f"Bearer {secret}", **headers)
        asyncio.run(request.of(target.world.app))
        assert request.read <= most, request.read
        return Outcome.of(request.status, request.body)

    return Attack(name, tries, status, code, says, strike)


def fits(target: Target) -> None:
    """Queue as many fits of every key as it may have waiting; the pool's samples are still to be embedded."""
    with target.world.runtime.database.write() as catalogue:
        for key in catalogue.keys.list():
            for _ in range(3):
                catalogue.jobs.enqueue("fit", {"asked": True}, namespace="acme", created_by=key.id)


def cooks(target: Target) -> None:
    """Queue as many cooks of the admin's as a key may have waiting; nobody runs them."""
    for number in range(3):
        assert target.post("/v1/soups", cook(number)).status == 202


def cook(number: int) -> dict[str, Any]:
    return {"recipe": {"ingredients": [{"ref": "acme/law", "weight": 1 + number}]}, "verify": False, "wait": 0}


MULTIPLIED = {"model": MODEL, "prompt": ["a"] * 256, "n": 16, "max_tokens": 50}
ATTACKS = (
    streamed("64 MiB of empty lists", "Has 22 million lists made of one body.", b"[],"),
    streamed("64 MiB of objects", "Has 16 million objects made of one body.", b"{},"),
    streamed("64 MiB of numbers", "Has 33 million numbers made of one body.", b"1,"),
    streamed("64 MiB of one text", "Has one text of 64 MiB held.", b"x" * 64),
    streamed(
        "64 MiB of a push", "Has a manifest of 64 MiB held, where large ones are taken.", b"[],", path="/v1/adapters"
    ),
    streamed(
        "64 MiB without the scope",
        "Has a body read that the key may not send.",
        b"x",
        status=403,
        code="forbidden",
        key="reader",
        most=0,
    ),
    streamed(
        "64 MiB with a revoked key",
        "Has a body read for a key that works no more.",
        b"x",
        status=401,
        code="unauthenticated",
        key="revoked",
        most=0,
    ),
    streamed(
        "64 MiB that are announced",
        "Has a body read that says how large it is.",
        b"x",
        most=0,
        content_length=str(2**26),
    ),
    streamed(
        "64 MiB to nowhere",
        "Has a body read for a path that there is not.",
        b"x",
        status=404,
        code="not_found",
        path="/v1/nowhere",
        most=0,
    ),
    streamed(
        "64 MiB that are no JSON",
        "Has a body gathered that no route reads.",
        b"x",
        status=400,
        code="invalid_parameter",
        content_type="text/plain",
        most=PIECE,
    ),
    Attack(
        "passages beyond the limit",
        "Has more characters embedded than a sample may have.",
        422,
        "invalid_sample",
        "150080 characters and the limit is 32768",
        lambda target: target.push(sample={"texts": [f"{number} {'x' * 5000}" for number in range(30)]}),
    ),
    sized(
        "2,001 texts",
        "Has more texts scored than a request may have.",
        "/v1/perplexity",
        {"model": MODEL, "texts": ["a"] * 2001},
        status=413,
        code="too_large",
    ),
    sized(
        "text of 25,000 characters",
        "Has a text tokenised that is longer than any may be.",
        "/tokenize",
        {"model": MODEL, "prompt": "word " * 5000},
        status=413,
        code="too_large",
    ),
    sized(
        "257 prompts",
        "Has more prompts continued than a request may have.",
        "/v1/completions",
        {"model": MODEL, "prompt": ["a"] * 257, "max_tokens": 1},
        status=413,
        code="too_large",
    ),
    sized(
        "17 choices",
        "Has more continuations made than a request may have.",
        "/v1/completions",
        {"model": MODEL, "prompt": "a", "n": 17},
        status=400,
        code="invalid_parameter",
        says="at most 16",
    ),
    sized(
        "best of 10^9",
        "Has a billion continuations made and one given back.",
        "/v1/completions",
        {"model": MODEL, "prompt": "a", "best_of": 10**9},
        status=400,
        code="invalid_parameter",
        says="at most 16",
    ),
    sized(
        "alternatives of the whole vocabulary",
        "Has all alternatives of every token written.",
        "/v1/completions",
        {"model": MODEL, "prompt": "a", "logprobs": 300},
        status=400,
        code="invalid_parameter",
        says="at most 20",
    ),
    sized(
        "2^40 tokens",
        "Asks for more tokens than a request may name.",
        "/v1/completions",
        {"model": MODEL, "prompt": "a", "max_tokens": 2**40},
        status=400,
        code="invalid_parameter",
    ),
    sized(
        "beyond the context",
        "Asks for more tokens than the base model can hold.",
        "/v1/completions",
        {"model": MODEL, "prompt": "a", "max_tokens": 10_000},
        status=400,
        code="invalid_parameter",
        says="the context of the base model is 64",
    ),
    Attack(
        "n x tokens",
        "Multiplies prompts, choices and tokens beyond what a minute of its key has.",
        413,
        "too_large",
        "1000 tokens a minute, and this request needs",
        lambda target: target.post("/v1/completions", MULTIPLIED, key="limited"),
    ),
    sized(
        "token out of the vocabulary",
        "Reads an embedding behind the last one.",
        "/v1/completions",
        {"model": MODEL, "prompt": [10**6]},
        status=400,
        code="invalid_parameter",
    ),
    sized(
        "negative token",
        "Reads an embedding before the first one.",
        "/v1/completions",
        {"model": MODEL, "prompt": [-1]},
        status=400,
        code="invalid_parameter",
    ),
    sized(
        "2,000 biases",
        "Has the logits of every token changed at every step.",
        "/v1/completions",
        {"model": MODEL, "prompt": "a", "logit_bias": {str(n): 1 for n in range(990)} | {"x" * 9: 1}},
        status=400,
        code="invalid_parameter",
    ),
    sized(
        "many stop texts",
        "Has the end of every text compared with many.",
        "/v1/completions",
        {"model": MODEL, "prompt": "a", "stop": ["x" * 500] * 5},
        status=400,
        code="invalid_parameter",
    ),
    sized(
        "wait of 10^9 seconds",
        "Holds a thread for thirty years.",
        "/v1/soups",
        {"recipe": {"ingredients": [{"ref": "acme/law"}]}, "wait": 10**9},
        status=400,
        code="invalid_parameter",
    ),
    sized(
        "page of 10^9 rows",
        "Has all rows of a table held.",
        "/v1/select",
        {"sample": {"texts": PASSAGES}, "top": 10**9, "wait": 0},
        status=400,
        code="invalid_parameter",
    ),
    Attack(
        "page of 10^6 rows",
        "Has all rows of a table held at once.",
        400,
        "invalid_parameter",
        "limit",
        lambda target: target.ask("GET", "/v1/adapters?limit=1000000"),
    ),
    Attack(
        "flood of fits",
        "Queues more fits than a key may have waiting.",
        429,
        "busy",
        "SOUP_JOB_QUEUE_PER_KEY",
        lambda target: target.post("/v1/selectors", {"selector": {"kind": "gmm"}, "wait": 5}),
        fits,
    ),
    Attack(
        "flood of cooks",
        "Queues more cooks than a key may have waiting.",
        429,
        "busy",
        "SOUP_JOB_QUEUE_PER_KEY",
        lambda target: target.post("/v1/soups", cook(99)),
        cooks,
    ),
    sized(
        "training of 10^6 steps",
        "Has a machine train for years.",
        "/v1/trainings",
        {
            "name": "mallory/x",
            "domain": "x",
            "base_model": "tiny",
            "texts": "sha256:" + "0" * 64,
            "spec": {"adapter": {"bottleneck": 4}, "recipe": {"steps": 10**6, "batch": 2, "block": 32}},
        },
        status=413,
        code="too_large",
    ),
    sized(
        "batch of 4,096 blocks",
        "Has more memory taken than the machine has.",
        "/v1/trainings",
        {
            "name": "mallory/x",
            "domain": "x",
            "base_model": "tiny",
            "texts": "sha256:" + "0" * 64,
            "spec": {"adapter": {"bottleneck": 4}, "recipe": {"steps": 4, "batch": 4096, "block": 64}},
        },
        status=413,
        code="too_large",
    ),
)


@each(ATTACKS)
def test_it_is_refused(target: Target, attack: Attack) -> None:
    target.withstands(attack)
