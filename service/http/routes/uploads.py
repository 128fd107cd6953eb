"""`/v1/blobs/uploads`: uploads in parts, which can be resumed after an interruption.

The protocol of the OCI distribution spec: POST opens, PATCH adds a part, GET returns the offset, PUT finishes, DELETE
aborts. Bytes acknowledged by a 202 are durable. Only the key that opened an upload sees it.
"""

from __future__ import annotations

import re
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request, Response
from fastapi.concurrency import contextmanager_in_threadpool
from fastapi.responses import JSONResponse
from starlette.requests import ClientDisconnect

from registry.catalogue.rows import UploadRow
from registry.errors import Cancelled, InvalidParameter, TooSlow
from registry.names import Digest
from registry.uploads.sessions import PartWriter
from service.http.app_services import AppServices
from service.http.problems import offset_headers
from service.http.requests.bodies import CheckedRoute
from service.http.requests.upload_body import announced_length, check_digest, write_body
from service.http.schemas.uploads import BlobStored, NewUpload, Upload, UploadList
from service.http.security.auth import Writer
from service.http.thread_turns import in_thread

router = APIRouter(prefix="/v1/blobs/uploads", tags=["blobs"], route_class=CheckedRoute)

ContentRange = Annotated[str | None, Header(description="First and last byte of the part, `0-1048575`.")]
_BYTES: dict[str, Any] = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
_PART: dict[str, Any] = {"requestBody": {"required": True, "content": _BYTES}}
_LAST: dict[str, Any] = {"requestBody": {"required": False, "content": _BYTES}}
_RANGE = re.compile(r"([0-9]{1,18})-([0-9]{1,18})", re.ASCII)


@router.post("", response_model=Upload, status_code=202)
def open_upload(services: AppServices, principal: Writer, body: NewUpload | None = None) -> Response:
    """Open an upload in parts. Send the parts to the URL in `Location`; `Upload-UUID` is the upload's id.

    Give the digest of the whole to find the upload again in the list of this key's uploads.
    """
    new_upload = body or NewUpload()
    row = services.uploads.open(principal.caller, digest=new_upload.digest, size=new_upload.size)
    return _accepted(row)


@router.get("")
def list_uploads(
    services: AppServices, principal: Writer, digest: Annotated[Digest | None, Query()] = None
) -> UploadList:
    """The unfinished uploads of this key, newest first; with `digest` only those of this blob."""
    rows = services.uploads.list(principal.caller, digest=digest)
    return UploadList(data=[_body(row) for row in rows])


@router.get("/{id}", response_class=Response, status_code=204)
def get_upload(id: str, services: AppServices, principal: Writer) -> Response:
    """The number of stored bytes of an upload: `Upload-Offset`, and `Range` if there are any."""
    row = services.uploads.get(principal.caller, id)
    return Response(status_code=204, headers=_headers(row))


@router.patch("/{id}", response_model=Upload, status_code=202, openapi_extra=_PART)
async def add_part(
    request: Request, id: str, services: AppServices, principal: Writer, content_range: ContentRange = None
) -> Response:
    """Add a part, which must begin at the upload's current offset; otherwise it is refused with 416 and that offset.

    Returns 202 once the part is durable. If the connection breaks, the bytes received so far are kept: get the offset,
    and continue there.
    """
    if content_range is None:
        raise InvalidParameter("A part needs 'Content-Range: <first byte>-<last byte>'.", param="content-range")
    start, stop = _span(content_range)
    _check_length(announced_length(request), stop - start)
    opened = services.uploads.open_part(principal.caller, id, start=start, stop=stop)
    async with contextmanager_in_threadpool(opened) as writer:
        await _receive(request, writer, services.settings.max_blob_bytes)
        row = await in_thread(writer.keep)
    return _accepted(row)


@router.put("/{id}", response_model=BlobStored, status_code=201, openapi_extra=_LAST)
async def finish_upload(
    request: Request,
    id: str,
    services: AppServices,
    principal: Writer,
    digest: Annotated[str, Query(description="What all of it is: `sha256:` and 64 hex digits.")],
    content_range: ContentRange = None,
) -> Response:
    """Finish an upload as the blob with this digest; the body may hold the last part.

    A body without `Content-Range` is the whole blob. If the bytes have another digest, the upload is deleted (400).
    """
    check_digest(digest)
    length = announced_length(request)
    chunked = length is None and "transfer-encoding" in request.headers
    start: int | None = None
    stop: int | None = None
    if content_range is not None:
        start, stop = _span(content_range)
        _check_length(length if length is not None or chunked else 0, stop - start)
    elif length or chunked:
        start, stop = 0, length
    caller = principal.caller
    async with contextmanager_in_threadpool(services.uploads.open_part(caller, id, start=start, stop=stop)) as writer:
        if start is not None:
            await _receive(request, writer, services.settings.max_blob_bytes)
        size = await in_thread(writer.commit, caller, digest)
    stored = BlobStored(digest=digest, size=size)
    headers = {"location": f"/v1/blobs/{digest}", "etag": f'"{digest}"'}
    return JSONResponse(stored.model_dump(), status_code=201, headers=headers)


@router.delete("/{id}", response_class=Response, status_code=204)
def delete_upload(id: str, services: AppServices, principal: Writer) -> Response:
    """Abort an upload and delete its bytes."""
    services.uploads.delete(principal.caller, id)
    return Response(status_code=204)


async def _receive(request: Request, writer: PartWriter, limit: int) -> None:
    """Write the body into the part; if it is incomplete, keep the bytes received so far and raise."""
    try:
        await write_body(request, writer.write, limit=limit)
    except ClientDisconnect as error:
        await in_thread(writer.keep)
        raise Cancelled("The client went away; the received bytes of the part are kept.") from error
    except TooSlow:
        await in_thread(writer.keep)
        raise
    await in_thread(writer.check_whole)


def _span(text: str) -> tuple[int, int]:
    """Parse a Content-Range into the offsets of its first byte and after its last; raises InvalidParameter."""
    match = _RANGE.fullmatch(text)
    if match is None or int(match[2]) < int(match[1]):
        raise InvalidParameter(
            "Content-Range must be '<first byte>-<last byte>', such as 0-1048575, and not empty.", param="content-range"
        )
    return int(match[1]), int(match[2]) + 1


def _check_length(length: int | None, announced: int) -> None:
    if length is not None and length != announced:
        raise InvalidParameter(
            f"Content-Range announces {announced} bytes and Content-Length {length}.", param="content-range"
        )


def _accepted(row: UploadRow) -> Response:
    return JSONResponse(_body(row).model_dump(mode="json"), status_code=202, headers=_headers(row))


def _headers(row: UploadRow) -> dict[str, str]:
    return {"location": f"/v1/blobs/uploads/{row.id}", "upload-uuid": row.id, **offset_headers(row.received)}


def _body(row: UploadRow) -> Upload:
    return Upload(
        id=row.id,
        offset=row.received,
        digest=row.digest,
        size=row.size,
        created_at=row.created_at,
        expires_at=row.expires_at,
    )
