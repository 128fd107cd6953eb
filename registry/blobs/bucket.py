"""A bucket of an object store, or the keys under a prefix of it, through the library obstore.

A failed request is retried with growing waits until a deadline, and then raises Unavailable. The message names the
store by its URL, which has no secret, and never quotes the library. A fault is logged when it begins and when it is
over. While a store is known to fail, each call tries only once, and a write first checks that the store answers. Calls
under `single_attempt` do the same, with a short timeout. Large objects have a longer timeout, as much as a slow link
needs.
"""

from __future__ import annotations

import random
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import obstore
from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError
from obstore.store import AzureStore, GCSStore, LocalStore, ObjectStore, S3Store, from_url
from pydantic import ValidationError

from registry.blobs.folder import INCOMING, MARK
from registry.blobs.state import Fault, StoreState
from registry.errors import Unavailable
from registry.spec import StoreMark

CHUNK_BYTES = 8 * 1024 * 1024
"""Bytes of one request: larger objects are sent as multipart uploads, and read by ranges."""
DELETE_BATCH = 500
"""Objects deleted by one request."""
CONCURRENCY = 4
"""Requests of one multipart upload sent at the same time."""
HASTY_SECONDS = 3.0
"""Timeout of a request to a store that is known to be failing, or while others wait for the caller."""
LARGE_BYTES = 2**20
"""Objects larger than this have a longer timeout."""
SLOWEST_LINK = 512 * 1024
"""Bytes a second of the slowest link that is supported."""
FIRST_WAIT, LONGEST_WAIT = 0.1, 3.0
SIGNS = {
    "s3": "an access key (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY) or a role of the machine",
    "gs": "a service account's key (GOOGLE_SERVICE_ACCOUNT) or an account of the machine that may sign",
    "az": "the account's key (AZURE_STORAGE_ACCOUNT_KEY) or an identity that may get a user delegation key",
}
"""The credentials that each kind of store needs to sign URLs."""
NO_BUCKET = ("NoSuchBucket", "ContainerNotFound", "specified bucket does not exist")
"""Messages of S3, Azure and Google for a bucket that does not exist; the one for a missing object differs."""
NOT_ALLOWED = ("status code: 401", "status code: 403")
"""Messages of the library where it has no exception of its own for it, as for lists."""
Result = TypeVar("Result")
_jitter = random.SystemRandom()

NO_SUCH = Fault("is gone", "There is no bucket for {}: make it, or correct SOUP_BLOBS_URL.")
REPLACED = Fault(
    "is another one",
    f"{{}} is not what the server was started with (its {MARK} is missing or another's): put it back, and the server "
    "goes on by itself; restart the server where it is the right one.",
)
REFUSED = Fault(
    "refuses the server",
    "{} refuses the server's credentials: see the variables that they come from (AWS_..., GOOGLE_..., AZURE_...), and "
    "what they may do.",
)
AWAY = Fault("does not answer", "{} does not answer, or not whole: try again later.", is_transient=True)


class ObjectStamp(NamedTuple):
    """Size and entity tag, which tell an object from one that replaces it."""

    size: int
    tag: str


class _TruncatedError(Exception):
    """The store returned fewer bytes than it announced, or stored fewer than it was sent."""


class Bucket(StoreState):
    """The objects under a URL (`s3://bucket/prefix`, also gs, az, file); threads share it.

    Requests are retried for `seconds`. The constructor sends none; it raises Unavailable if the library accepts neither
    the URL nor the environment variables of its kind of store.
    """

    def __init__(self, url: str, *, seconds: float) -> None:
        self.name = url.rstrip("/")
        super().__init__(f"the object store {self.name}")
        self._seconds = seconds
        self._transfer_seconds = CONCURRENCY * CHUNK_BYTES / SLOWEST_LINK
        """Seconds that concurrent requests may take on the slowest link."""
        self._fault_is_of_writing = False
        self._thread_local = threading.local()
        # An http:// endpoint has to be named by the operator; the library ignores its own variable for that beside
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
                sending: Any = {**client, "timeout": timedelta(seconds=seconds / 2 + self._transfer_seconds)}
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
    def single_attempt(self) -> Iterator[None]:
        """Have requests of this thread tried once, with a timeout of HASTY_SECONDS, while others wait for the caller.

        A timeout then is not counted as a fault of the store.
        """
        self._thread_local.is_hasty = True
        try:
            yield
        finally:
            self._thread_local.is_hasty = False

    # --- objects --------------------------------------------------------------------------------------

    def head(self, key: str) -> ObjectStamp | None:
        """The stamp of an object, None if there is none."""
        try:
            return self._retry(lambda: self._stamp(key))
        except FileNotFoundError:
            self.check()
            return None

    def read_range(self, key: str, start: int, end: int) -> bytes:
        """The bytes of an object from `start` to before `end`, all of them; raises FileNotFoundError."""
        if end <= start:
            return b""
        try:
            return self._retry(lambda: self._get_range(key, start, end))
        except FileNotFoundError:
            self.check()
            raise

    def read_chunks(self, key: str, size: int) -> Iterator[bytes]:
        """All bytes of an object of this size, in chunks; raises FileNotFoundError."""
        for start in range(0, size, CHUNK_BYTES):
            yield self.read_range(key, start, min(start + CHUNK_BYTES, size))

    def put(self, key: str, data: bytes | Path, size: int) -> ObjectStamp:
        """Store or replace an object of this size atomically; returns its stamp."""
        client, extra_seconds = (self._usual, 0.0) if size <= LARGE_BYTES else (self._large, self._transfer_seconds)
        try:
            return self._retry(lambda: self._put(client, key, data, size), writes=True, extra_seconds=extra_seconds)
        except FileNotFoundError as error:
            raise self._fail(NO_SUCH, writes=True) from error

    def copy(self, key: str, target: str) -> None:
        """Copy an object to another key; raises FileNotFoundError."""
        self._retry(lambda: obstore.copy(self._large, key, target), writes=True)

    def delete(self, *keys: str) -> None:
        """Delete the objects that exist, many with one request where the store can."""
        for start in range(0, len(keys), DELETE_BATCH):
            self._delete(keys[start : start + DELETE_BATCH])

    def _delete(self, keys: Sequence[str]) -> None:
        try:
            self._retry(lambda: obstore.delete(self._client, list(keys)), writes=True)
        except FileNotFoundError:  # a folder stops at the first missing file
            for key in keys if len(keys) > 1 else ():
                self._delete([key])

    def list_keys(self, prefix: str | None = None) -> list[str]:
        """The keys of all objects, or of those under a prefix."""
        return [meta["path"] for meta in self._list(prefix)]

    def list_modified(self, prefix: str) -> list[tuple[str, float]]:
        """Keys of the objects under a prefix, and when each was stored, in seconds since 1970 by the store's clock."""
        return [(meta["path"], meta["last_modified"].timestamp()) for meta in self._list(prefix)]

    def _list(self, prefix: str | None) -> list[Any]:
        """The metadata of objects, as obstore returns it."""
        return self._retry(lambda: [meta for chunk in obstore.list(self._client, prefix) for meta in chunk])

    def sign_url(self, key: str, seconds: float) -> str:
        """A URL at which anybody may get an object for so long; raises Unavailable if the store cannot sign."""
        if not isinstance(self._usual, S3Store | GCSStore | AzureStore):
            raise Unavailable(
                f"SOUP_BLOBS_PRESIGNED_SECONDS needs a bucket of s3, gs or az: {self.name} signs no URL.",
                param="blobs_presigned_seconds",
            )
        try:  # without `_retry`: at most credentials are requested, whose failure is no fault of the store
            return str(obstore.sign(self._usual, "GET", key, timedelta(seconds=seconds)))
        except (BaseError, OSError, ValueError) as error:
            raise Unavailable(
                f"{self.name} cannot sign URLs with its credentials, or their provider does not answer: give "
                f"{SIGNS[self.name[:2]]}, or unset SOUP_BLOBS_PRESIGNED_SECONDS.",
                param="blobs_presigned_seconds",
            ) from error

    # --- state of the store ----------------------------------------------------------------------------

    def mark(self, *, patient: bool = True) -> StoreMark | None:
        """The bucket's mark, None without one; raises ValidationError for another file of that name."""
        try:
            data = self._retry(lambda: bytes(obstore.get(self._client, MARK).bytes()), patient=patient)
        except FileNotFoundError as error:
            if any(message in str(error) for message in NO_BUCKET):
                raise self._fail(NO_SUCH, writes=False) from error
            return None
        return StoreMark.model_validate_json(data)

    def check(self, *, patient: bool = True) -> None:
        """Raise Unavailable if the bucket is gone, or is another one."""
        try:
            mark = self.mark(patient=patient)
        except ValidationError as error:
            raise self._fail(REPLACED, writes=False) from error
        if not self.matches(mark):
            raise self._fail(REPLACED, writes=False)
        if self.fault is REPLACED:
            self.clear_fault()

    def probe(self) -> Fault | None:
        """Write and delete an object, each tried once; returns the fault of the bucket, None if it can be used."""
        key = f"{INCOMING}/{secrets.token_hex(8)}"
        try:
            self.check(patient=False)
            self._retry(lambda: self._write_probe(key), writes=True, patient=False)
        except FileNotFoundError:
            self._fail(NO_SUCH, writes=True)
        except Unavailable:
            pass
        return self.fault

    def pause(self, attempts: int) -> None:
        """Wait before the next attempt, with exponential backoff and jitter."""
        time.sleep(min(LONGEST_WAIT, FIRST_WAIT * 2**attempts) * _jitter.uniform(0.5, 1.0))

    @property
    def _client(self) -> ObjectStore:
        """The store, with short timeouts while it is failing."""
        return self._usual if self.fault is None and not self._is_hasty else self._hasty

    @property
    def _is_hasty(self) -> bool:
        return getattr(self._thread_local, "is_hasty", False)

    def _stamp(self, key: str) -> ObjectStamp:
        meta = obstore.head(self._client, key)
        return ObjectStamp(meta["size"], meta["e_tag"] or meta["last_modified"].isoformat())

    def _get_range(self, key: str, start: int, end: int) -> bytes:
        data = bytes(obstore.get_range(self._client, key, start=start, end=end))
        if len(data) != end - start:
            raise _TruncatedError
        return data

    def _put(self, client: ObjectStore, key: str, data: bytes | Path, size: int) -> ObjectStamp:
        if self.fault is not None:  # a small request first, so that a large object does not wait for its timeout
            with suppress(FileNotFoundError):
                obstore.head(self._hasty, MARK)
        obstore.put(client, key, data, chunk_size=CHUNK_BYTES, max_concurrency=CONCURRENCY)
        stamp = self._stamp(key)
        if stamp.size != size:
            raise _TruncatedError
        return stamp

    def _write_probe(self, key: str) -> None:
        obstore.put(self._client, key, b"looking")
        obstore.delete(self._client, key)

    def _retry(
        self, request: Callable[[], Result], *, writes: bool = False, patient: bool = True, extra_seconds: float = 0.0
    ) -> Result:
        """The result of `request`, retried until the deadline; raises FileNotFoundError, or Unavailable.

        `extra_seconds` are added to the deadline; unless `patient`, there is one attempt.
        """
        patient = patient and self.fault is None and not self._is_hasty
        deadline = time.monotonic() + (self._seconds + extra_seconds if patient else 0)
        attempts = 0
        while True:
            try:
                result = request()
            except FileNotFoundError:
                raise
            except (BaseError, _TruncatedError, OSError) as error:
                fault = _fault_of(error)
                if fault.is_transient and self._is_hasty:
                    raise Unavailable(fault.message.format(self.name), param="blobs") from error
                if not fault.is_transient or time.monotonic() >= deadline:
                    raise self._fail(fault, writes=writes) from error
            else:
                self._record_success(writes)
                return result
            self.pause(attempts)
            attempts += 1

    def _fail(self, fault: Fault, *, writes: bool) -> Unavailable:
        """Record a fault, and return the error to raise."""
        with self._lock:
            self._fault_is_of_writing = writes
            self.record_fault(fault, fault.summary)
        return Unavailable(fault.message.format(self.name), param="blobs")

    def _record_success(self, writes: bool) -> None:
        """Clear the fault after a successful request, except one of writing after a read."""
        if self.fault is not REPLACED and (writes or not self._fault_is_of_writing):
            self.clear_fault()


def _fault_of(error: Exception) -> Fault:
    message = str(error)
    if isinstance(error, PermissionDeniedError | UnauthenticatedError | PermissionError):
        return REFUSED
    if any(text in message for text in NOT_ALLOWED):
        return REFUSED
    return NO_SUCH if any(text in message for text in NO_BUCKET) else AWAY
