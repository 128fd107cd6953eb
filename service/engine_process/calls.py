"""Calls and messages between two processes over one connection, each end in the same way.

A call is answered with a value or an error; a message is not answered. Values are pickled: both processes are of one
server.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from itertools import count
from multiprocessing.connection import Connection
from typing import Any

from registry.errors import Unavailable
from service.engine.progress import as_soup_error, without_frames

log = logging.getLogger("soup.engine")

MAX_CALLS = 64
"""Calls that are answered at once; further ones wait."""
CALL_SECONDS = 60.0
"""How long a call waits for its answer by default."""
_ANSWER = "answer"


class Peer:
    """The other end of a connection. `calls` answer its calls in threads, `messages` take its messages in `serve`.

    Every call and message raises Unavailable with the sentence `gone` once the connection is closed.
    """

    def __init__(
        self,
        connection: Connection,
        *,
        calls: Mapping[str, Callable[..., Any]],
        messages: Mapping[str, Callable[..., None]],
        gone: str,
    ) -> None:
        self._connection = connection
        self._calls = calls
        self._messages = {**messages, _ANSWER: self._take_answer}
        self._gone = gone
        self.is_gone = False
        """True once the other end is known to be gone: before a call raises Unavailable for it."""
        self._sending = threading.Lock()
        self._numbers = count(1)
        self._unsent: dict[int, tuple[Any, ...]] = {}
        """Calls that wait to be sent, by number: a caller takes back what the other end has not begun to read."""
        self._unanswered: dict[int, Future[Any]] = {}
        self._sender = ThreadPoolExecutor(1, "engine-sends")
        """Sends calls, so that their callers wait no longer than their deadline for an end that does not read."""
        self._pool = ThreadPoolExecutor(MAX_CALLS, "engine-calls")

    def tell(self, name: str, *arguments: Any) -> None:
        """Send a message; waits while the other end does not read."""
        self.send(0, name, arguments)

    def tell_soon(self, name: str, *arguments: Any) -> None:
        """Send a message after the calls before it, without waiting: for event loops."""
        self._send_soon(self.tell, name, *arguments)

    def call(
        self,
        name: str,
        *arguments: Any,
        seconds: float | None = CALL_SECONDS,
        on_late: Callable[[], None] = lambda: None,
    ) -> Any:
        """Return the other end's answer to a call; raises its error, and Unavailable without one in `seconds`.

        `on_late` is called when the answer to a call that was sent comes after that, or the connection is closed.
        """
        number = next(self._numbers)
        self._unsent[number] = (number, name, arguments)
        future = self._unanswered[number] = Future()
        try:
            self._send_soon(self._send_call, number)
            return future.result(seconds)
        except TimeoutError:
            if self._unsent.pop(number, None) is None:
                future.add_done_callback(lambda _answered: on_late())
            else:
                self._unanswered.pop(number, None)
            raise Unavailable(f"The engine's process has not answered in {seconds:g} seconds: try again.") from None
        except BaseException:
            self._unsent.pop(number, None)
            self._unanswered.pop(number, None)
            raise

    def serve(self) -> None:
        """Take what the other end sends until it has closed the connection, is gone, or sends what cannot be read."""
        try:
            while True:
                self._receive(*self._connection.recv())
        except (EOFError, OSError):
            pass
        except Exception:
            log.exception("a message of the engine's process cannot be read: the connection is closed")
        finally:
            self.is_gone = True
            with self._sending:
                self._connection.close()
            self._sender.shutdown(wait=False)  # first, so that calls after the loop are refused
            for number in list(self._unanswered):
                self._take_answer(number, None, Unavailable(self._gone))
            self._pool.shutdown(wait=False, cancel_futures=True)

    def _receive(self, number: int, name: str, arguments: tuple[Any, ...]) -> None:
        if number:
            self._pool.submit(self._answer, number, self._calls[name], arguments)
            return
        try:
            self._messages[name](*arguments)
        except Exception:
            log.exception("a message of the engine's process could not be taken")

    def _answer(self, number: int, call: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        try:
            answer, error = call(*arguments), None
        except Exception as raised:
            answer, error = None, without_frames(as_soup_error(raised))
        with suppress(Unavailable):  # nobody waits for it
            self.tell(_ANSWER, number, answer, error)

    def _take_answer(self, number: int, answer: Any, error: Exception | None) -> None:
        future = self._unanswered.pop(number, None)
        if future is None:  # nobody waits for it
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(answer)

    def _send_soon(self, send: Callable[..., None], *arguments: Any) -> None:
        try:
            self._sender.submit(send, *arguments)
        except RuntimeError:  # it is shut down
            raise Unavailable(self._gone) from None

    def _send_call(self, number: int) -> None:
        message = self._unsent.pop(number, None)
        if message is None:  # nobody waits for it
            return
        try:
            self.send(*message)
        except Exception as error:
            self._take_answer(number, None, error)

    def send(self, *message: Any) -> None:
        """Send values; the first ones of a connection are taken before the other end serves it."""
        try:
            with self._sending:
                self._connection.send(message)
        except OSError:
            self.is_gone = True
            raise Unavailable(self._gone) from None
