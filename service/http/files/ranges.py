"""Answer with stored bytes: ETag, If-None-Match, and one Range with If-Range.

Called by the routes of blobs and of an adapter's files. The content under a digest never changes: the digest is the
(strong) ETag, and a client that was allowed to read the answer may cache it forever. The content under a name (an
adapter's file) may change, so a cache has to revalidate it with the ETag.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

from fastapi import HTTPException, Request, Response
from fastapi.responses import StreamingResponse

CHUNK = 256 * 1024
FOR_EVER = "private, max-age=31536000, immutable"
REVALIDATE = "private, no-cache"
BINARY = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
NOT_MODIFIED: dict[int | str, dict[str, Any]] = {304: {"description": "`If-None-Match` names the etag"}}
"""`responses` of a HEAD route that answers by `ranged`."""
BYTES: dict[int | str, dict[str, Any]] = {200: {"content": BINARY}, 206: {"content": BINARY}, **NOT_MODIFIED}
"""`responses` of a GET route that answers by `ranged`."""
_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})", re.ASCII)


def ranged(
    request: Request,
    *,
    digest: str,
    size: int,
    open: Callable[[], BinaryIO],
    media_type: str = "application/octet-stream",
    filename: str | None = None,
    cache: str = FOR_EVER,
) -> Response:
    """Return the answer to GET or HEAD for `size` bytes: 200, 206 for one range, or 304.

    `open` is called only if bytes are sent. Several ranges, or a malformed one, are answered in full, as RFC 9110
    allows. Raises HTTPException (416) for a range without bytes. `filename` must be plain ASCII without quotes (ours
    are fixed names).
    """
    etag = f'"{digest}"'
    headers = {"etag": etag, "accept-ranges": "bytes", "cache-control": cache}
    if filename is not None:
        headers["content-disposition"] = f'attachment; filename="{filename}"'
    if names_etag(request.headers.get("if-none-match"), etag):
        return Response(status_code=304, headers=headers)
    range_header = request.headers.get("range") if request.method == "GET" else None
    if request.headers.get("if-range") not in {None, etag}:
        range_header = None
    span = None if range_header is None else span_of(range_header, size)
    if span == "unsatisfiable":
        content_range = {"content-range": f"bytes */{size}"}
        raise HTTPException(416, f"The range holds none of the {size} bytes", headers=content_range)
    start, stop = (0, size) if not isinstance(span, tuple) else span
    headers["content-length"] = str(stop - start)
    if isinstance(span, tuple):
        headers["content-range"] = f"bytes {start}-{stop - 1}/{size}"
    if request.method == "HEAD":
        return Response(headers=headers, media_type=media_type)
    status = 206 if isinstance(span, tuple) else 200
    return StreamingResponse(_slice(open, start, stop), status_code=status, headers=headers, media_type=media_type)


def span_of(header: str, size: int) -> tuple[int, int] | str | None:
    """Parse a Range header into (start, stop), 'unsatisfiable', or None if it is to be ignored."""
    match = _RANGE.fullmatch(header.strip())
    if match is None or match.group(1) == match.group(2) == "":
        return None
    first, last = match.groups()
    if first == "":  # a suffix range: the last bytes
        length = min(int(last), size)
        return (size - length, size) if length else "unsatisfiable"
    start = int(first)
    if last and int(last) < start:
        return None
    if start >= size:
        return "unsatisfiable"
    return start, min(int(last) + 1, size) if last else size


def names_etag(header: str | None, etag: str) -> bool:
    """Return True if an If-None-Match header matches an ETag."""
    if header is None:
        return False
    return any(value.strip().removeprefix("W/") in {etag, "*"} for value in header.split(","))


def _slice(open: Callable[[], BinaryIO], start: int, stop: int) -> Iterator[bytes]:
    with open() as file:
        file.seek(start)
        remaining = stop - start
        while remaining > 0:
            chunk = file.read(min(CHUNK, remaining))
            if not chunk:
                raise OSError("a blob is shorter than its recorded size")
            remaining -= len(chunk)
            yield chunk
