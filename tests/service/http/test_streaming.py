"""Events that a stream sends for an engine's tokens: as their schema has them, in order, those ready together.

The engine is one of prepared tokens, so that the tests say when they come and what is in them.
"""

from __future__ import annotations

import asyncio
import gc
import json
import threading
from collections.abc import Awaitable, Callable, Sequence
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel
from starlette.requests import Request

from registry.errors import Cancelled, Internal, Unavailable
from service.engine import Completion, Delta, GenerateRequest, Generation, ScoreRequest, Ticket
from service.engine.token_stream import Outbox, TokenStream
from service.http.answers.events import DONE, event
from service.http.answers.generation import ChatAnswers, ChatEvents, CompletionAnswers, CompletionEvents, Prompt
from service.http.answers.streaming import Events, EventStream, _event_chunks, finish, start
from service.http.schemas.generation import ChatChunk, ChatRequest, CompletionAnswer, CompletionRequest

TEXTS = st.text(alphabet=st.characters(exclude_categories=["Cs"])) | st.sampled_from(
    ["", '"', "\\", "\n\n", "data: [DONE]\n\n", "\u2028", "\x00", "🦜", "e\u0301", "</script>", "\ufffd"]
)
HELLO: Any = [{"role": "user", "content": "a"}]
LOGPROBS = st.floats(max_value=0, allow_nan=False, allow_infinity=False)
TOPS = st.lists(st.tuples(st.integers(0, 9), LOGPROBS), max_size=3).map(tuple)


class Vocabulary:
    """A tokenizer whose ten tokens are hard to write as JSON."""

    words = ('"', "\\", "\n", "\u2028", "é", "🦜", "\x07", " a", "{", "data: ")

    def decode(self, tokens: Sequence[int], **_: Any) -> str:
        return "".join(self.words[token] for token in tokens)

    def convert_ids_to_tokens(self, token: int) -> str:
        return self.words[token]


def events_of(body: CompletionRequest | ChatRequest, prompts: Sequence[str] = ("a",)) -> Events:
    model: Any = SimpleNamespace(
        base=SimpleNamespace(tokenizer=Vocabulary()), fingerprint="sha256:" + "0" * 64, name=body.model
    )
    if isinstance(body, ChatRequest):
        return ChatEvents(ChatAnswers(body, model, 3))
    return CompletionEvents(CompletionAnswers(body, model, [Prompt((1, 2), text, 0) for text in prompts]))


def parsed(text: str, schema: type[BaseModel]) -> list[Any]:
    """The events of a text, each of which is to the byte what the schema makes of it."""
    payloads = []
    for frame in text.split("\n\n")[:-1]:
        payload = schema.model_validate(json.loads(frame.removeprefix("data: ")))
        assert event(payload) == frame + "\n\n"
        payloads.append(payload)
    return payloads


@st.composite
def tokens_of(draw: st.DrawFn, n: int) -> list[Delta]:
    """The tokens of `n` choices, mixed, each choice's last with its finish reason."""
    remaining = [draw(st.integers(1, 4)) for _ in range(n)]
    deltas = []
    while any(remaining):
        index = draw(st.sampled_from([i for i in range(n) if remaining[i]]))
        remaining[index] -= 1
        reason: Any = None if remaining[index] else draw(st.sampled_from(["stop", "length"]))
        token, offset = draw(st.integers(0, 9)), draw(st.integers(0, 9))
        deltas.append(Delta(index, token, draw(TEXTS), offset, draw(LOGPROBS), draw(TOPS), reason))
    return deltas


def ended(tokens: Sequence[Delta], n: int) -> Generation:
    ids = [tuple(delta.token_id for delta in tokens if delta.index == index) for index in range(n)]
    return Generation(tuple(Completion(token_ids, "", "length") for token_ids in ids), reused=1)


def fields_for(model: str, n: int, *, usage: bool) -> dict[str, Any]:
    """The fields that a completion and a chat request share."""
    return {"model": model[:200], "n": n, "stream": True} | (
        {"stream_options": {"include_usage": True}} if usage else {}
    )


# --- events ---------------------------------------------------------------------------------------


@given(st.data(), st.integers(1, 3), st.sampled_from([None, 0, 2]), st.booleans(), TEXTS.filter(bool))
def test_events_of_completions(data: st.DataObject, n: int, logprobs: int | None, usage: bool, model: str) -> None:
    echo = logprobs is None and data.draw(st.booleans())
    prompts = data.draw(st.lists(TEXTS, min_size=1, max_size=2))
    body = CompletionRequest(**fields_for(model, n, usage=usage), prompt="a", echo=echo, logprobs=logprobs)
    events, generated, sent = events_of(body, prompts), [], ""
    sent += events.first()
    for number in range(len(prompts)):
        tokens = data.draw(tokens_of(n))
        generated += [(number * n + delta.index, delta) for delta in tokens]
        sent += "".join(events.encode(number, delta) for delta in tokens)
        sent += events.encode(number, ended(tokens, n))
    sent += events.last()
    chunks: list[CompletionAnswer] = parsed(sent, CompletionAnswer)
    written = [chunk.choices[0] for chunk in chunks if chunk.choices]
    for choice in range(n * len(prompts)):
        pieces, deltas = (
            [piece for piece in written if piece.index == choice],
            [delta for at, delta in generated if at == choice],
        )
        echoed = prompts[choice // n] if echo else ""
        assert "".join(piece.text for piece in pieces) == echoed + "".join(delta.text for delta in deltas)
        assert [piece.finish_reason for piece in pieces if piece.finish_reason] == [deltas[-1].finish_reason]
        assert pieces[-1].finish_reason is not None
        if logprobs is not None:
            assert [piece.logprobs and piece.logprobs.token_logprobs for piece in pieces] == [
                [delta.logprob] for delta in deltas
            ]
    assert all(chunk.model == model[:200] and chunk.id == chunks[0].id for chunk in chunks)
    assert [chunk.usage.completion_tokens for chunk in chunks if chunk.usage] == [len(generated)] * usage
    assert all(("usage" in chunk.model_fields_set) == usage for chunk in chunks)


@given(st.data(), st.integers(1, 3), st.sampled_from([None, 0, 2]), st.booleans(), TEXTS.filter(bool))
def test_events_of_chat(data: st.DataObject, n: int, top: int | None, usage: bool, model: str) -> None:
    body = ChatRequest(**fields_for(model, n, usage=usage), messages=HELLO, logprobs=top is not None, top_logprobs=top)
    tokens, events = data.draw(tokens_of(n)), events_of(body)
    sent = events.first() + "".join(events.encode(0, delta) for delta in tokens)
    sent += events.encode(0, ended(tokens, n)) + events.last()
    chunks: list[ChatChunk] = parsed(sent, ChatChunk)
    written = [chunk.choices[0] for chunk in chunks if chunk.choices]
    assert [piece.delta.role for piece in written[:n]] == ["assistant"] * n
    for index in range(n):
        pieces, deltas = (
            [piece for piece in written if piece.index == index],
            [delta for delta in tokens if delta.index == index],
        )
        assert "".join(piece.delta.content or "" for piece in pieces) == "".join(delta.text for delta in deltas)
        assert [piece.finish_reason for piece in pieces] == [None] * (len(pieces) - 1) + [deltas[-1].finish_reason]
        if top is not None:
            assert [piece.logprobs.content[0].logprob for piece in pieces if piece.logprobs] == [
                delta.logprob for delta in deltas
            ]
    assert [chunk.usage.completion_tokens for chunk in chunks if chunk.usage] == [len(tokens)] * usage
    assert all(("usage" in chunk.model_fields_set) == usage for chunk in chunks)


@pytest.mark.parametrize("schema", [CompletionAnswer, ChatChunk])
def test_a_choice_without_tokens_still_ends(schema: type[BaseModel]) -> None:
    chat = ChatRequest(model="a", messages=HELLO, n=2)
    events = events_of(chat if schema is ChatChunk else CompletionRequest(model="a", prompt="a", n=2))
    chunks = parsed(events.encode(0, ended([], 2)), schema)
    assert [(chunk.choices[0].index, chunk.choices[0].finish_reason) for chunk in chunks] == [
        (0, "length"),
        (1, "length"),
    ]


class Prepared:
    """An engine that takes requests; the test says what comes of them."""

    def __init__(self) -> None:
        self.requests: list[Any] = []
        self.tickets: list[Ticket] = []
        self.submitted = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def submit_all(self, requests: Sequence[GenerateRequest | ScoreRequest]) -> list[Ticket]:
        self.requests += requests
        self.tickets += [Ticket(1) for _ in requests]
        self._loop.call_soon_threadsafe(self.submitted.set)
        return self.tickets[-len(requests) :]

    def step(self, texts: Sequence[str | None]) -> None:
        """A step that gives each request the token of a text, or none."""
        for request, text in zip(self.requests, texts, strict=True):
            if text is not None:
                request.on_token(Delta(0, 1, text, 0))
        for listener in dict.fromkeys(request.on_step for request in self.requests):
            listener()


Started = Callable[..., Awaitable[TokenStream]]


class Raw:
    """Events that show what they are of."""

    def first(self) -> str:
        return "<"

    def encode(self, number: int, output: Delta | Generation, /) -> str:
        return f"{number}{output.text if isinstance(output, Delta) else '.'} "

    def last(self) -> str:
        return ">"


@pytest.fixture
async def engine() -> Prepared:
    return Prepared()


@pytest.fixture
async def started(engine: Prepared) -> Started:
    """Starts a stream of some prompts, each of which has had a token of a text."""
    outbox = Outbox(asyncio.get_running_loop())

    async def open_stream(prompts: int = 1, text: str = "a") -> TokenStream:
        stream = TokenStream([GenerateRequest("tiny", (1,)) for _ in range(prompts)], outbox)
        earlier = len(engine.requests)
        engine.submitted.clear()
        starting = asyncio.ensure_future(start(present_client(), engine, stream))  # type: ignore[arg-type]
        await engine.submitted.wait()
        engine.step([None] * earlier + [text] * prompts)
        await starting
        return stream

    return open_stream


def failed(ticket: Ticket) -> None:
    ticket.set_exception(Internal("it broke"))


class Client:
    """One that sends nothing, until it is `gone`."""

    def __init__(self) -> None:
        self.gone = asyncio.Event()

    async def receive(self) -> Any:
        await self.gone.wait()
        return {"type": "http.disconnect"}


def present_client() -> Request:
    """A request whose client stays."""
    return Request({"type": "http"}, Client().receive)


# --- handing over ---------------------------------------------------------------------------------


@pytest.mark.anyio
async def test_a_step_wakes_the_event_loop_once_for_all_streams(
    engine: Prepared, started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams = [await started(2), await started(), await started()]
    for stream in streams:
        await stream.receive()
    loop = asyncio.get_running_loop()
    wake = Mock(wraps=loop.call_soon_threadsafe)
    monkeypatch.setattr(loop, "call_soon_threadsafe", wake)
    engine.step(["b", "c", None, "d"])
    assert wake.call_count == 1
    assert [(number, delta.text) for number, delta in await streams[0].receive()] == [(0, "b"), (1, "c")]
    assert [delta.text for _, delta in await streams[2].receive()] == ["d"]
    engine.step([None] * 4)
    assert wake.call_count == 1, "a step without tokens wakes nobody"
    engine.step([None, None, "e", None])
    assert [delta.text for _, delta in await streams[1].receive()] == ["e"]
    assert wake.call_count == 2


@pytest.mark.anyio
async def test_nothing_is_lost_between_threads(engine: Prepared, started: Started) -> None:
    """Tokens that are put while others are delivered come too, in their order, without another step."""
    stream = await started(text="0")
    tokens = [str(number) for number in range(1, 1000)]

    def steps() -> None:
        for text in tokens:
            engine.step([text])

    thread = threading.Thread(target=steps)
    thread.start()
    received: list[str] = []
    while len(received) < 1000:
        received += [delta.text for _, delta in await stream.receive()]
    thread.join()
    assert received == ["0", *tokens]


@pytest.mark.anyio
def test_an_event_loop_that_is_closed_is_told_nothing() -> None:
    loop = asyncio.new_event_loop()
    outbox = Outbox(loop)
    loop.close()
    for _ in range(2):
        outbox.put(None, 0, None)  # type: ignore[arg-type]
        outbox.flush()


@pytest.mark.anyio
async def test_what_is_ready_goes_together_and_the_end_with_the_last_token(engine: Prepared, started: Started) -> None:
    chunks = _event_chunks(await started(2), Raw())  # type: ignore[arg-type]
    assert await anext(chunks) == b"<0a 1a "
    engine.step(["b", None])
    engine.step(["c", "é"])
    assert await anext(chunks) == "0b 0c 1é ".encode()
    engine.tickets[0].set_result(ended([], 1))
    engine.step([None, "d"])
    assert await anext(chunks) == b"0. 1d "
    engine.step([None, "e"])
    engine.tickets[1].set_result(ended([], 1))
    assert [chunk async for chunk in chunks] == [b"1e 1. >" + DONE.encode()]


@pytest.mark.anyio
@pytest.mark.parametrize("end", [failed, Ticket.cancel])
async def test_an_error_is_the_last_event_behind_the_tokens_that_came(
    engine: Prepared, started: Started, end: Callable[[Ticket], object]
) -> None:
    stream = await started()
    engine.step(["b"])
    end(engine.tickets[0])
    body = b"".join([chunk async for chunk in _event_chunks(stream, Raw())])  # type: ignore[arg-type]
    assert body.startswith(b'<0a 0b data: {"error": {"message": ')
    assert b"[DONE]" not in body
    assert b"it broke" not in body, "what an internal error says is for the log"
    assert body.count(b"\n\n") == 1


@pytest.mark.anyio
@pytest.mark.parametrize(("end", "raised"), [(failed, Internal), (Ticket.cancel, Unavailable)])
async def test_what_fails_before_the_first_token_fails_the_start(
    engine: Prepared, end: Callable[[Ticket], object], raised: type[Exception]
) -> None:
    requests, outbox = [GenerateRequest("tiny", (1,))] * 2, Outbox(asyncio.get_running_loop())
    starting = asyncio.ensure_future(
        start(present_client(), engine, TokenStream(requests, outbox))  # type: ignore[arg-type]
    )
    await engine.submitted.wait()
    end(engine.tickets[1])
    with pytest.raises(raised):
        await starting
    assert engine.tickets[0].cancelled(), "the others are dropped"


@pytest.mark.anyio
async def test_a_client_that_leaves_a_whole_answer_cancels_it_and_leaves_nothing_in_the_log(engine: Prepared) -> None:
    logged: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: logged.append(context))
    client = Client()
    request = Request({"type": "http"}, client.receive)
    answering = asyncio.ensure_future(
        finish(request, engine, [GenerateRequest("tiny", (1,))] * 2)  # type: ignore[arg-type]
    )
    await engine.submitted.wait()
    client.gone.set()
    with pytest.raises(Cancelled):
        await answering
    assert all(ticket.cancelled() for ticket in engine.tickets)
    del answering, request
    await asyncio.sleep(0)  # the event loop's turn, in which the cancelled futures end
    gc.collect()
    assert logged == []


@pytest.mark.anyio
async def test_a_client_that_is_slow_gets_the_rest_in_one_part_and_one_that_leaves_cancels(
    engine: Prepared, started: Started
) -> None:
    response, sent, client = EventStream(await started(), Raw(), headers={}), [], Client()
    body_sent, go_on = asyncio.Event(), asyncio.Event()

    async def send(message: Any) -> None:
        if message.get("body"):
            sent.append(message["body"])
            body_sent.set()
            await go_on.wait()

    answering = asyncio.ensure_future(response({"type": "http"}, client.receive, send))
    await body_sent.wait()
    for text in "bcd":
        engine.step([text])
    body_sent.clear()
    go_on.set()
    await body_sent.wait()
    assert sent == [b"<0a ", b"0b 0c 0d "]
    client.gone.set()
    await answering
    assert engine.tickets[0].cancelled()
