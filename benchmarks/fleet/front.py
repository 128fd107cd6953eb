"""What stands before the S3 server of the benchmarks: bytes pass in both directions, cut off or timed.

As a process of its own it is killed in the server's place. Its arguments are the port it listens on and the server's,
and it says a line once it listens. Where it is killed, each request on its way is cut off wherever it is, as it is by a
server that is killed; but the objects, which the server behind it has in its memory, stay.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

AT_ONCE = 64 * 1024


class Meter:
    """How long requests were on their way, from the first byte of each to the last of its answer."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._spans: list[list[float]] = []
        self._now: dict[object, list[float]] = {}
        """The span of each connection's last request."""

    def asked(self, connection: object) -> None:
        """Bytes came from a client: of a new request where the one before has been answered."""
        last, now = self._now.get(connection), self._clock()
        if last is None or last[1] > last[0]:
            self._now[connection] = [now, now]
            self._spans.append(self._now[connection])

    def answered(self, connection: object) -> None:
        """Bytes came from the server."""
        self._now[connection][1] = self._clock()

    def seconds(self) -> float:
        """Seconds in which some request was on its way: those at a time count once."""
        total, end = 0.0, float("-inf")
        for first, last in sorted(map(tuple, self._spans)):
            total += max(0.0, last - max(first, end))
            end = max(end, last)
        return total


async def _pass(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, tell: Callable[[], None] = lambda: None
) -> None:
    """Hand on what comes until there is no more, or nobody takes it."""
    try:
        while piece := await reader.read(AT_ONCE):
            tell()
            writer.write(piece)
            await writer.drain()
    except ConnectionError:
        pass
    finally:
        writer.close()


async def listen(port: int, target: int, meter: Meter | None = None) -> asyncio.Server:
    """Listen, and hand what comes to the server at the port `target`."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", target)
        asked = (lambda: None) if meter is None else (lambda: meter.asked(writer))
        answered = (lambda: None) if meter is None else (lambda: meter.answered(writer))
        await asyncio.gather(_pass(reader, back, asked), _pass(there, writer, answered))

    return await asyncio.start_server(connected, "127.0.0.1", port)


@contextmanager
def metered(port: int, target: int) -> Iterator[Meter]:
    """A front in a thread of this process while open, with what it measures."""
    meter, loop = Meter(), asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    server = asyncio.run_coroutine_threadsafe(listen(port, target, meter), loop).result()
    try:
        yield meter
    finally:
        loop.call_soon_threadsafe(server.close)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()


async def _serve(port: int, target: int) -> None:
    server = await listen(port, target)
    print("listening", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1]), int(sys.argv[2])))
