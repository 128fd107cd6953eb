"""Uploads in parts: what is large is sent piece by piece, and goes on where it ended after whatever broke it off.

Nothing is remembered on this machine: the server lists the key's unfinished uploads by the digest that they are to
have, so that a second `soup push` of the same file finds what the first, killed one has sent. Two that send the same
file at once take turns.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from pathlib import Path

from registry.errors import (
    Busy,
    DigestMismatch,
    Internal,
    InvalidParameter,
    NotFound,
    TooSlow,
    Unavailable,
    WrongOffset,
)
from service.client.answers import part
from service.client.steps import Aside, Pause, Steps, data_of, json_of, send

UPLOADS = "/v1/blobs/uploads"
BINARY = {"content-type": "application/octet-stream"}
TRIES = 8
"""Tries in a row that come no further."""
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 15.0
PASSING = (Unavailable, WrongOffset, NotFound, TooSlow, Busy)
"""What may be over a moment later: a server that is away or full, another who sends the same, an upload that ended."""


def is_there(digest: str) -> Steps[bool]:
    """Whether the server has the blob, whole; sending a damaged one again repairs it."""
    try:
        yield from send("HEAD", f"/v1/blobs/{digest}")
    except (NotFound, Internal):
        return False
    return True


def send_in_parts(
    source: bytes | Path, *, digest: str, size: int, part_bytes: int, progress: Callable[[int], object]
) -> Steps[None]:
    """Have the server store these bytes; `progress` hears how many it holds, and may raise to end it.

    Goes on after errors that pass, as long as every few tries come further; raises the last of them.
    """
    sending = _Sending(source, digest, size, part_bytes, progress)
    tries = reached = 0
    while True:
        try:
            yield from sending.go_on()
        except PASSING as error:
            tries = 1 if sending.held > reached else tries + 1
            reached = max(reached, sending.held)
            if tries >= TRIES:
                raise
            asked = error.retry_after if isinstance(error, Busy) else 0.0
            yield from sending.wait(min(max(asked, FIRST_PAUSE * 2.0 ** (tries - 1)), LONGEST_PAUSE))
            if (yield from _is_there_by_now(digest)):
                progress(size)
                return
        else:
            return


def _is_there_by_now(digest: str) -> Steps[bool]:
    """Whether the blob is there although a request failed: its answer was lost, or another has sent the same."""
    try:
        return (yield from is_there(digest))
    except PASSING:
        return False


@dataclass
class _Sending:
    """One file on its way; `held` is how much of it the server said it has."""

    source: bytes | Path
    digest: str
    size: int
    part_bytes: int
    progress: Callable[[int], object]
    held: int = 0

    def go_on(self) -> Steps[None]:
        """Send what the server does not have yet, and finish; raises what goes wrong."""
        path = yield from self._found_or_opened()
        with closing(BytesIO(self.source) if isinstance(self.source, bytes) else self.source.open("rb")) as file:
            while self.held < self.size:
                file.seek(self.held)
                chunk: bytes = yield Aside(partial(file.read, min(self.part_bytes, self.size - self.held)))
                if not chunk:
                    raise DigestMismatch(f"{self.source!s} became shorter while it was sent; send it again.")
                span = f"{self.held}-{self.held + len(chunk) - 1}"
                try:
                    yield from send("PATCH", path, body=chunk, headers={**BINARY, "content-range": span}, repeat=False)
                except InvalidParameter as error:
                    yield from self._begin_anew(path, error)
                self.held += len(chunk)
                self.progress(self.held)
        yield from send("PUT", path, params={"digest": self.digest}, repeat=False)

    def _begin_anew(self, path: str, error: InvalidParameter) -> Steps[None]:
        """Give up an upload that takes no part where it ends, as one of too many; raises Unavailable, that passes.

        Of one that holds nothing, and of another refusal, the error is raised.
        """
        if self.held == 0 or error.param != "content-range":
            raise error
        with suppress(NotFound):
            yield from send("DELETE", path)
        raise Unavailable(f"An unfinished upload of {self.held} bytes takes no more parts: another begins at 0.")

    def wait(self, seconds: float) -> Steps[None]:
        """Pause, a second at a time: whoever hears of the progress may end the waiting too."""
        while seconds > 0:
            yield Pause(min(seconds, 1.0))
            self.progress(self.held)
            seconds -= 1.0

    def _found_or_opened(self) -> Steps[str]:
        """The path of the upload that has come furthest, or of a new one."""
        wanted = {"digest": self.digest, "size": self.size}
        found = yield from data_of("GET", UPLOADS, params={"digest": self.digest})
        same = [one for one in found if one.get("size") in (None, self.size)]
        upload = max(same, key=lambda one: int(one["offset"]), default=None)
        if upload is None:
            upload = yield from json_of("POST", UPLOADS, json=wanted, repeat=False)
        self.held = int(upload["offset"])
        self.progress(self.held)
        return f"{UPLOADS}/{part(str(upload['id']))}"
