"""A bucket of an object store, or the part of it under a prefix: its objects by key, through the library obstore.

Whatever goes wrong is tried again, later each time, until a deadline; then it is told as Unavailable, which names the
store by its URL (that holds no secret) and never what the library said, logged once when it begins and once when it is
over. While a store is known to be away nobody waits for it: each call tries once, and a write asks whether it answers
before it sends anything; so does whoever holds others up (`briefly`), once and not for long. What is large has longer
for each request, as many bytes may be on a slow link.
"""

from __future__ import annotations

import logging
import random
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import obstore
from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError
from obstore.store import AzureStore, GCSStore, LocalStore, ObjectStore, S3Store, from_url
from pydantic import ValidationError

from registry.blobs.folder import INCOMING, MARK
from registry.errors import Unavailable
from registry.spec import StoreMark

PART = 8 * 1024 * 1024
"""Bytes of one request: larger objects are sent as multipart uploads, and read by ranges."""
DELETED_AT_ONCE = 500
"""Objects that are deleted by one request."""
AT_ONCE = 4
"""Parts of one object that are on their way together."""
HASTY_SECONDS = 3.0
"""How long an answer of a store may take that is known to be away, or while others wait for whoever asks."""
LARGE, SLOWEST = 2**20, 512 * 1024
"""What is larger than the first has longer to be sent, as a link needs that carries the second in a second."""
FIRST_WAIT, LONGEST_WAIT = 0.1, 3.0
SIGNS = {
    "s3": "an access key (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY) or a role of the machine",
    "gs": "a service account's key (GOOGLE_SERVICE_ACCOUNT) or an account of the machine that may sign",
    "az": "the account's key (AZURE_STORAGE_ACCOUNT_KEY) or an identity that may get a user delegation key",
}
"""What signs the URLs of each kind of store."""
NO_BUCKET = ("NoSuchBucket", "ContainerNotFound", "specified bucket does not exist")
"""How S3, Azure and Google's store say so; an object that is missing says something else."""
NOT_ALLOWED = ("status code: 401", "status code: 403")
"""How the library says so where it has no error of its own for it, as when objects are listed."""
Found = TypeVar("Found")

log = logging.getLogger("soup.blobs")


@dataclass(frozen=True)
class BucketTrouble:
    """What is wrong with the store, in some words and in a sentence that says what to do; `{}` is the store."""

    what: str
    message: str
    passing: bool = False
    """Whether it may be over a moment later, so that it is tried again."""


NO_SUCH = BucketTrouble("is gone", "There is no bucket for {}: make it, or correct SOUP_BLOBS_URL.")
OTHERS = BucketTrouble(
    "is another one",
    f"{{}} is not what the server was started with (its {MARK} is missing or another's): put it back, and the server "
    "goes on by itself; restart the server where it is the right one.",
)
REFUSED = BucketTrouble(
    "refuses the server",
    "{} refuses the server's credentials: see the variables that they come from (AWS_..., GOOGLE_..., AZURE_...), and "
    "what they may do.",
)
AWAY = BucketTrouble("does not answer", "{} does not answer, or not whole: try again later.", passing=True)


class ObjectStamp(NamedTuple):
    """What tells an object from the one that takes its place."""

    size: int
    tag: str


class _CutError(Exception):
    """A store gave fewer bytes than it said it has, or holds fewer than it was given."""


class Bucket:
    """The objects under a URL (`s3://bucket/prefix`, also gs, az, file), which threads share.

    `seconds` is how long a call is tried again. Nothing is asked of the store here. Raises Unavailable where the URL
    or the variables of the environment that belong to it are not what the library takes.
    """

    def __init__(self, url: str, *, seconds: float) -> None:
        self.name = url.rstrip("/")
        self.store: str | None = None
        """Whose the bucket has to be by its mark; None until one was found."""
        self.trouble: BucketTrouble | None = None
        """What was wrong when it was last used or looked at."""
        self._seconds = seconds
        self._longer = AT_ONCE * PART / SLOWEST
        """Seconds that parts on their way together may take on the slowest link that is good enough."""
        self._of_writing = False
        self._lock = threading.Lock()
        self._of_thread = threading.local()
        # An http:// endpoint has to be named by the operator; the library's own variable for that is not heard beside
        # other options.
        client: Any = {"timeout": timedelta(seconds=seconds / 2), "allow_http": True}
        retry: Any = {"max_retries": 2, "retry_timeout": timedelta(seconds=seconds)}
        try:
            if url.startswith("file://"):
                self._usual: ObjectStore = LocalStore(Path(url.removeprefix("file://")), mkdir=True)
                self._hasty: ObjectStore = self._usual
                self._large: ObjectStore = self._usual
            else:
                self._usual = from_url(self.name, client_options=client, retry_config=retry)
                sending: Any = {**client, "timeout": timedelta(seconds=seconds / 2 + self._longer)}
                self._large = from_url(self.name, client_options=sending, retry_config=retry)
                client = {**client, "timeout": timedelta(seconds=min(HASTY_SECONDS, seconds / 2))}
                retry = {**retry, "max_retries": 0}
                self._hasty = from_url(self.name, client_options=client, retry_config=retry)
        except (BaseError, OSError, ValueError) as error:
            raise Unavailable(
                f"{self.name} cannot be opened as an object store: see SOUP_BLOBS_URL, and the variables of the "
                "environment that its kind needs (AWS_..., GOOGLE_..., AZURE_...).",
                param="blobs_url",
            ) from error

    @contextmanager
    def briefly(self) -> Iterator[None]:
        """While open, this thread tries each call once, and its answer may take HASTY_SECONDS; for whoever makes others
        wait. That it took longer says nothing of the store."""
        self._of_thread.is_brief = True
        try:
            yield
        finally:
            self._of_thread.is_brief = False

    # --- objects --------------------------------------------------------------------------------------

    def head(self, key: str) -> ObjectStamp | None:
        """The stamp of an object, None where there is none."""
        try:
            return self._tried(lambda: self._stamp(key))
        except FileNotFoundError:
            self.check()
            return None

    def part(self, key: str, start: int, end: int) -> bytes:
        """The bytes of an object from `start` to before `end`, all of them; raises FileNotFoundError."""

        def got() -> bytes:
            found = bytes(obstore.get_range(self._objects, key, start=start, end=end))
            if len(found) != end - start:
                raise _CutError
            return found

        try:
            return self._tried(got) if end > start else b""
        except FileNotFoundError:
            self.check()
            raise

    def parts(self, key: str, size: int) -> Iterator[bytes]:
        """All bytes of an object of this size, one part after the other; raises FileNotFoundError."""
        for start in range(0, size, PART):
            yield self.part(key, start, min(start + PART, size))

    def put(self, key: str, data: bytes | Path, size: int) -> ObjectStamp:
        """Store an object of this size, whole or not at all; the stamp that the store gives it. It does not matter
        whether there is one already, nor who else stores the same at the same time."""

        to, longer = (self._usual, 0.0) if size <= LARGE else (self._large, self._longer)

        def stored() -> ObjectStamp:
            if self.trouble is not None:
                self._answers()
            obstore.put(to, key, data, chunk_size=PART, max_concurrency=AT_ONCE)
            found = self._stamp(key)
            if found.size != size:
                raise _CutError
            return found

        try:
            return self._tried(stored, writes=True, longer=longer)
        except FileNotFoundError as error:
            raise self._told(NO_SUCH, writes=True) from error

    def copy(self, key: str, target: str) -> None:
        """Store an object under another key too; raises FileNotFoundError."""
        self._tried(lambda: obstore.copy(self._large, key, target), writes=True)

    def delete(self, *keys: str) -> None:
        """Forget objects, many with one request where the store can; nothing happens where there is none."""
        for start in range(0, len(keys), DELETED_AT_ONCE):
            self._deleted(keys[start : start + DELETED_AT_ONCE])

    def _deleted(self, keys: Sequence[str]) -> None:
        try:
            self._tried(lambda: obstore.delete(self._objects, list(keys)), writes=True)
        except FileNotFoundError:  # a folder says so of the first that is missing, and leaves the rest
            for key in keys if len(keys) > 1 else ():
                self._deleted([key])

    def keys_under(self, prefix: str | None = None) -> list[str]:
        """The keys of all objects, or of those in a folder."""

        def listed() -> list[str]:
            return [one["path"] for chunk in obstore.list(self._objects, prefix) for one in chunk]

        return self._tried(listed)

    def ages_under(self, prefix: str) -> list[tuple[str, float]]:
        """The keys of all objects in a folder, and when each was stored by the store's clock, in seconds since 1970."""

        def listed() -> list[tuple[str, float]]:
            found = obstore.list(self._objects, prefix)
            return [(one["path"], one["last_modified"].timestamp()) for chunk in found for one in chunk]

        return self._tried(listed)

    def signed(self, key: str, seconds: float) -> str:
        """A URL at which anybody may get an object for so long; raises Unavailable where the store gives none."""
        if not isinstance(self._usual, S3Store | GCSStore | AzureStore):
            raise Unavailable(
                f"SOUP_BLOBS_PRESIGNED_SECONDS needs a bucket of s3, gs or az: {self.name} signs no URL.",
                param="blobs_presigned_seconds",
            )
        try:  # at most credentials are asked for: that says nothing of the store
            return str(obstore.sign(self._usual, "GET", key, timedelta(seconds=seconds)))
        except (BaseError, OSError, ValueError) as error:
            raise Unavailable(
                f"{self.name} signs no URL with the credentials that there are, or what gives them does not "
                f"answer: give {SIGNS[self.name[:2]]}, or set no SOUP_BLOBS_PRESIGNED_SECONDS.",
                param="blobs_presigned_seconds",
            ) from error

    # --- whether it can be used ------------------------------------------------------------------------

    def mark(self, *, patient: bool = True) -> StoreMark | None:
        """What the bucket says of whose it is, None without a mark; raises ValidationError for another's file."""
        try:
            found = self._tried(lambda: bytes(obstore.get(self._objects, MARK).bytes()), patient=patient)
        except FileNotFoundError as error:
            if any(word in str(error) for word in NO_BUCKET):
                raise self._told(NO_SUCH, writes=False) from error
            return None
        return StoreMark.model_validate_json(found)

    def check(self, *, patient: bool = True) -> None:
        """Raises Unavailable where the bucket is gone, or is another one."""
        try:
            mark = self.mark(patient=patient)
        except ValidationError as error:
            raise self._told(OTHERS, writes=False) from error
        if self.store is None and mark is not None:
            self.store = mark.store
        if self.store is not None and (mark is None or mark.store != self.store):
            raise self._told(OTHERS, writes=False)
        if self.trouble is OTHERS:
            self._is_over()

    def look(self) -> BucketTrouble | None:
        """What is wrong with it now; an object is written and deleted to see that, each tried once."""
        key = f"{INCOMING}/{secrets.token_hex(8)}"

        def write() -> None:
            obstore.put(self._objects, key, b"looking")
            obstore.delete(self._objects, key)

        try:
            self.check(patient=False)
            self._tried(write, writes=True, patient=False)
        except FileNotFoundError:
            self._told(NO_SUCH, writes=True)
        except Unavailable:
            pass
        return self.trouble

    def pause(self, tries: int) -> None:
        """Wait before the next of several tries: longer each time, and not all at one moment."""
        time.sleep(min(LONGEST_WAIT, FIRST_WAIT * 2**tries) * random.uniform(0.5, 1.0))  # noqa: S311

    @property
    def _objects(self) -> ObjectStore:
        """The store as it is asked now: once and briefly while something is wrong with it."""
        return self._usual if self.trouble is None and not self._is_brief else self._hasty

    @property
    def _is_brief(self) -> bool:
        return getattr(self._of_thread, "is_brief", False)

    def _answers(self) -> None:
        """Ask a store that was in trouble for something small, so that nobody waits with a large object in hand."""
        with suppress(FileNotFoundError):
            obstore.head(self._hasty, MARK)

    def _stamp(self, key: str) -> ObjectStamp:
        found = obstore.head(self._objects, key)
        return ObjectStamp(found["size"], found["e_tag"] or found["last_modified"].isoformat())

    def _tried(
        self, use: Callable[[], Found], *, writes: bool = False, patient: bool = True, longer: float = 0.0
    ) -> Found:
        """What `use` gives, tried again until the deadline; raises FileNotFoundError, or Unavailable.

        `longer` are seconds that are added to the deadline.
        """
        patient = patient and self.trouble is None and not self._is_brief
        end = time.monotonic() + (self._seconds + longer if patient else 0)
        tries = 0
        while True:
            try:
                found = use()
            except FileNotFoundError:
                raise
            except (BaseError, _CutError, OSError) as error:
                trouble = self._of(error)
                if trouble.passing and self._is_brief:
                    raise Unavailable(trouble.message.format(self.name), param="blobs") from error
                if not trouble.passing or time.monotonic() >= end:
                    raise self._told(trouble, writes=writes) from error
            else:
                self._is_well(writes)
                return found
            self.pause(tries)
            tries += 1

    def _of(self, error: Exception) -> BucketTrouble:
        said = str(error)
        if isinstance(error, PermissionDeniedError | UnauthenticatedError | PermissionError):
            return REFUSED
        if any(words in said for words in NOT_ALLOWED):
            return REFUSED
        return NO_SUCH if any(words in said for words in NO_BUCKET) else AWAY

    def _told(self, found: BucketTrouble, *, writes: bool) -> Unavailable:
        message = found.message.format(self.name)
        with self._lock:
            if self.trouble is not found:
                self.trouble = found
                log.warning("the object store %s %s", self.name, found.what)
            self._of_writing = writes
        return Unavailable(message, param="blobs")

    def _is_well(self, writes: bool) -> None:
        """Something worked: what was wrong is over, unless it was with writing and this was not."""
        if self.trouble is not OTHERS and (writes or not self._of_writing):
            self._is_over()

    def _is_over(self) -> None:
        with self._lock:
            before, self.trouble, self._of_writing = self.trouble, None, False
        if before is not None:
            log.info("the object store %s can be used again", self.name)
