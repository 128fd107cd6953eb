"""The overhead of HTTP over the engine, and the start time of a server.

- `http_overhead_streams`: 32 streamed completions at once from a server (`soup serve`, a separate process) against
  the same 32 requests to an engine in this process, handed over one by one as they come over HTTP: the time of the one
  over the other, less 1. `one_by_one_vs_at_once` is what it costs the engine that they do not come all at once:
  prompts then run beside streams that have begun, at the pace that these are promised.
- `http_overhead_scoring`: the same of 64 clients that ask for the perplexity of a passage each.
- `start_s` is the time from the command to the address, base model loaded; `first_token_after_start_ms` that of the
  first token of the first request, beside that of a later one.

The clients are plain sockets in this process, on the same processors; what they take counts as overhead.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any
from urllib.parse import urlsplit

import httpx2

from benchmarks.report import Result, interleaved, options, ratios, repeated, seconds
from benchmarks.scoring import check_nats
from benchmarks.subjects import (
    SMALL_VOCABULARY,
    CopiedBases,
    Window,
    about,
    base_options,
    chosen_base,
    page_passages,
    rows_of,
    write_tokenizer,
)
from benchmarks.writing import check_same
from demo.results import Figure
from demo.server import Server, running, write_bases
from registry.base_model import LoadedBase, load_base
from registry.cores import use_cores
from registry.errors import Internal
from registry.spec import BaseEntry
from service.engine import Delta, EngineLimits, GenerateRequest, SamplingParams, Ticket
from service.engine.engine import Engine
from service.engine.text_calls import score_request, text_windows

STREAMS, CLIENTS, PROMPT, TOKENS = 32, 64, 32, 32
NAMESPACE = "bench"
"""Of all requests, as those of one key: prompts of several tenants take smaller parts of a step."""
GOAL, STRETCH = 0.08, 0.05

Body = Mapping[str, Any]


@dataclass
class Setting:
    """A server and an engine with the same base model, and prompts and passages that are drawn for each repeat."""

    server: Server
    base: LoadedBase
    engine: Engine
    streams: int
    clients: int
    prompts: list[Window] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.redraw(0)

    def redraw(self, seed: int) -> None:
        """Other prompts and passages."""
        self.prompts = rows_of(self.base, rows=self.streams, length=PROMPT, seed=seed)
        self.texts = page_passages(self.clients, seed=seed)

    def streams_over_http(self) -> list[str]:
        """The text of each stream."""
        bodies = [_completion(self, prompt, TOKENS) for prompt in self.prompts]
        return [streamed(answer) for answer in post_all(self.server, "/v1/completions", bodies)]

    def streams_by_engine(self) -> list[str]:
        """The text of each stream from the engine, which hands over every token."""
        return self._from_engine(lambda requests: [self.engine.submit(request) for request in requests])

    def streams_at_once(self) -> list[str]:
        """The text of each stream from the engine, all requests handed over together."""
        return self._from_engine(self.engine.submit_all)

    def _from_engine(self, submit: Callable[[list[GenerateRequest]], list[Ticket]]) -> list[str]:
        params = SamplingParams(max_tokens=TOKENS, temperature=0)
        got: list[list[str]] = [[] for _ in self.prompts]
        requests = [
            GenerateRequest(self.base.entry.id, prompt, None, params, handed_to(texts), namespace=NAMESPACE)
            for prompt, texts in zip(self.prompts, got, strict=True)
        ]
        for ticket in submit(requests):
            ticket.result()
        return ["".join(texts) for texts in got]

    def scores_over_http(self) -> list[float]:
        """NLL of each passage."""
        bodies = [{"model": f"base/{self.base.entry.id}", "texts": [text]} for text in self.texts]
        answers = [json.loads(answer) for answer in post_all(self.server, "/v1/perplexity", bodies)]
        return [score["mean_nll"] * score["tokens"] for score in answers]

    def scores_by_engine(self) -> list[float]:
        """NLL of each passage from the engine, passages tokenised on the way."""
        tickets = self.engine.submit_all(
            [score_request(self.base, text_windows(self.base, text), None) for text in self.texts]
        )
        return [sum(ticket.result().nll) for ticket in tickets]


def handed_to(texts: list[str]) -> Callable[[Delta], None]:
    """A listener that keeps the text of every token."""
    return lambda delta: texts.append(delta.text)


def _completion(setting: Setting, prompt: Window, tokens: int) -> Body:
    return {
        "model": f"base/{setting.base.entry.id}",
        "prompt": list(prompt),
        "max_tokens": tokens,
        "temperature": 0,
        "stream": True,
    }


def post_all(server: Server, path: str, bodies: Sequence[Body]) -> list[bytes]:
    """The complete answers to POSTs that are sent at once; raises Internal for any status but 200."""

    async def gathered() -> list[bytes]:
        return list(await asyncio.gather(*(_posted(server, path, body) for body in bodies)))

    return asyncio.run(gathered())


async def _posted(server: Server, path: str, body: Body) -> bytes:
    address = urlsplit(server.url)
    content = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.0\r\nHost: {address.netloc}\r\nAuthorization: Bearer {server.key}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    )
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    try:
        writer.write(head.encode() + content)
        answer = await reader.read()
    finally:
        writer.close()
        await writer.wait_closed()
    line, _, answer_body = answer.partition(b"\r\n\r\n")
    if line.split(maxsplit=2)[1:2] != [b"200"]:
        raise Internal(f"{path} answered {answer[:300].decode(errors='replace')}")
    return answer_body


def streamed(answer: bytes) -> str:
    """The text of a stream's chunks."""
    chunks = [json.loads(line[6:]) for line in answer.splitlines() if line.startswith(b"data: {")]
    return "".join(chunk["choices"][0]["text"] for chunk in chunks if chunk["choices"])


@contextmanager
def prepare(base: LoadedBase, scratch: Path, *, streams: int, clients: int) -> Iterator[tuple[Setting, float]]:
    """Server and engine while open, and the seconds that the server took to start."""
    base = with_folder(base, scratch / "base")
    bases = write_bases(scratch / "bases.toml", base.entry)
    engine = Engine(CopiedBases({base.entry.id: base}), EngineLimits(max_running=streams))
    engine.start()
    try:
        began = time.perf_counter()
        with running(bases, scratch / "data", settings={"SOUP_ENGINE_ROWS": str(streams)}) as server:
            while httpx2.get(f"{server.url}/readyz").status_code != 200:  # until the base model is loaded
                time.sleep(0.02)
            yield Setting(server, base, engine, streams, clients), time.perf_counter() - began
    finally:
        engine.stop()


def with_folder(base: LoadedBase, folder: Path) -> LoadedBase:
    """A base that a server can load: a random one is saved to `folder`, with a small tokenizer."""
    if base.tokenizer is not None:
        return base
    base.model.save_pretrained(folder)
    write_tokenizer(folder, SMALL_VOCABULARY)
    return load_base(BaseEntry(id="base", source=str(folder), dtype=base.entry.dtype))


def run(base: LoadedBase, *, streams: int, clients: int, repeats: int) -> Result:
    """The start, then every way in turn."""
    result = Result()
    with (
        tempfile.TemporaryDirectory() as scratch,
        prepare(base, Path(scratch), streams=streams, clients=clients) as (setting, start),
    ):
        firsts = [1000 * seconds_to_first(setting) for _ in range(1 + repeats)]
        calls: dict[str, Callable[[], list[Any]]] = {
            "streams_over_http": setting.streams_over_http,
            "streams_by_engine": setting.streams_by_engine,
            "streams_at_once": setting.streams_at_once,
            "scores_over_http": setting.scores_over_http,
            "scores_by_engine": setting.scores_by_engine,
        }
        dtype = setting.base.entry.dtype
        results = {way: call() for way, call in calls.items()}
        check_same(results, [("streams_over_http", "streams_by_engine")], exact=dtype == "float32")
        check_nats(results["scores_over_http"], results["scores_by_engine"], dtype)
        times = interleaved(calls, repeats=repeats, warm=True, before_repeat=lambda repeat: setting.redraw(repeat + 1))
        result.rows += [
            {
                **about(setting.base),
                "way": way,
                "clients": streams if "streams" in way else clients,
                "wall_s": median(wall_seconds),
            }
            for way, wall_seconds in times.items()
        ]
    for figure, kind, count in (("streams", "streams", streams), ("scoring", "scores", clients)):
        overheads = [ratio - 1 for ratio in ratios(times[f"{kind}_over_http"], times[f"{kind}_by_engine"])]
        result.figures[f"http_overhead_{figure}"] = repeated(
            overheads, "share", goal=GOAL, stretch=STRETCH, note=f"time; {count} at once"
        )
    burst = ratios(times["streams_by_engine"], times["streams_at_once"])
    result.figures["one_by_one_vs_at_once"] = repeated(burst, "ratio", note=f"time in the engine; {streams} requests")
    result.figures["start_s"] = Figure(start, "s", note="soup serve until it answers, base model loaded")
    result.figures["first_token_after_start_ms"] = Figure(firsts[0], "ms", note="the first request of all")
    result.figures["first_token_ms"] = repeated(firsts[1:], "ms", note="later ones, over HTTP")
    return result


def seconds_to_first(setting: Setting) -> float:
    """Of a request for one token."""
    body = _completion(setting, setting.prompts[0], 1)
    return seconds(lambda: post_all(setting.server, "/v1/completions", [body]))


def main() -> None:
    """The command line."""
    parser = options(__doc__)
    base_options(parser)
    parser.add_argument("--streams", type=int, default=STREAMS, help="streamed completions at once")
    parser.add_argument("--clients", type=int, default=CLIENTS, help="clients that score at once")
    arguments = parser.parse_args()
    use_cores(1)  # workers that torch keeps for this thread would slow the engine's
    base = chosen_base(arguments.base_folder, arguments.dtype)
    run(base, streams=arguments.streams, clients=arguments.clients, repeats=arguments.repeats).finish(arguments.out)


if __name__ == "__main__":
    main()
