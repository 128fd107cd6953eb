"""`/v1/blobs/sha256:...`: upload, check and download bytes by their digest; `/v1/blobs/uploads`: upload them in parts.

A blob is visible to the namespaces that uploaded it or own an adapter that uses it; for others it is a 404 like an
unknown one. A client must send a stored blob completely too, which proves that the client has it.

Uploads in parts can be resumed after an interruption, by the protocol of the OCI distribution spec: POST opens, PATCH
adds a part, GET returns the offset, PUT finishes, DELETE aborts. Bytes acknowledged by a 202 are durable. Only the key
that opened an upload sees it.
"""

from __future__ import annotations

import re
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Query, Request, Response
from fastapi.concurrency import contextmanager_in_threadpool
from fastapi.responses import JSONResponse
from starlette.requests import ClientDisconnect

from registry.blobs import BlobWriter
from registry.catalogue.rows import UploadRow
from registry.context import Caller
from registry.errors import Cancelled, DigestMismatch, InvalidParameter, NotFound, TooLarge, TooSlow
from registry.names import Digest
from registry.quotas import ByteAllowance
from registry.stored.files import deleted_unless_recorded
from registry.uploads.files import is_damaged, record_blob, renew_blob, room_for_blob, too_large
from registry.uploads.sessions import PartWriter
from service.access.keys import Principal
from service.http.app_services import AppServices
from service.http.files.ranges import BINARY, BYTES, NOT_MODIFIED, ranged
from service.http.problems import offset_headers
from service.http.requests.bodies import CheckedRoute
from service.http.requests.upload_body import announced_length, check_digest, write_body
from service.http.schemas.blobs import BlobStored, NewUpload, Upload, UploadList
from service.http.security.auth import Reader, Writer, needs
from service.http.thread_turns import in_thread

router = APIRouter(prefix="/v1/blobs", tags=["blobs"], route_class=CheckedRoute)
Either = Annotated[Principal, Depends(needs("read", "write"))]
"""Principals that may check if a blob exists: writers do before they upload."""
ContentRange = Annotated[str | None, Header(description="First and last byte of the part, `0-1048575`.")]
_BODY: dict[str, Any] = {"requestBody": {"required": True, "content": BINARY}}
_LAST_PART: dict[str, Any] = {"requestBody": {"required": False, "content": BINARY}}
_KNOWN: dict[int | str, dict[str, Any]] = {200: {"model": BlobStored, "description": "Known already"}}
_RANGE = re.compile(r"([0-9]{1,18})-([0-9]{1,18})", re.ASCII)


# --- uploads in parts (before `/{digest}`, which matches their paths) ---------------------------------


@router.post("/uploads", response_model=Upload, status_code=202)
def open_upload(services: AppServices, principal: Writer, body: NewUpload | None = None) -> Response:
    """Open an upload in parts. Send the parts to the URL in `Location`; `Upload-UUID` is the upload's id.

    Give the digest of the whole to find the upload again in the list of this key's uploads.
    """
    new_upload = body or NewUpload()
    row = services.uploads.open(principal.caller, digest=new_upload.digest, size=new_upload.size)
    return _accepted(row)


@router.get("/uploads")
def list_uploads(
    services: AppServices, principal: Writer, digest: Annotated[Digest | None, Query()] = None
) -> UploadList:
    """The unfinished uploads of this key, newest first; with `digest` only those of this blob."""
    rows = services.uploads.list(principal.caller, digest=digest)
    return UploadList(data=[_upload_body(row) for row in rows])


@router.get("/uploads/{id}", response_class=Response, status_code=204)
def get_upload(id: str, services: AppServices, principal: Writer) -> Response:
    """The number of stored bytes of an upload: `Upload-Offset`, and `Range` if there are any."""
    row = services.uploads.get(principal.caller, id)
    return Response(status_code=204, headers=_upload_headers(row))


@router.patch("/uploads/{id}", response_model=Upload, status_code=202, openapi_extra=_BODY)
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
        await _receive_part(request, writer, services.settings.max_blob_bytes)
        row = await in_thread(writer.keep)
    return _accepted(row)


@router.put("/uploads/{id}", response_model=BlobStored, status_code=201, openapi_extra=_LAST_PART)
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
            await _receive_part(request, writer, services.settings.max_blob_bytes)
        size = await in_thread(writer.commit, caller, digest)
    return _stored(digest, size, status=201)


@router.delete("/uploads/{id}", response_class=Response, status_code=204)
def delete_upload(id: str, services: AppServices, principal: Writer) -> Response:
    """Abort an upload and delete its bytes."""
    services.uploads.delete(principal.caller, id)
    return Response(status_code=204)


async def _receive_part(request: Request, writer: PartWriter, limit: int) -> None:
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
    return JSONResponse(_upload_body(row).model_dump(mode="json"), status_code=202, headers=_upload_headers(row))


def _upload_headers(row: UploadRow) -> dict[str, str]:
    return {"location": f"/v1/blobs/uploads/{row.id}", "upload-uuid": row.id, **offset_headers(row.received)}


def _upload_body(row: UploadRow) -> Upload:
    return Upload(
        id=row.id,
        offset=row.received,
        digest=row.digest,
        size=row.size,
        created_at=row.created_at,
        expires_at=row.expires_at,
    )


# --- blobs --------------------------------------------------------------------------------------------


@router.put("/{digest}", response_model=BlobStored, status_code=201, responses=_KNOWN, openapi_extra=_BODY)
async def put_blob(request: Request, digest: str, services: AppServices, principal: Writer) -> Response:
    """Upload a blob in one request; it becomes visible after its length and digest are verified.

    Returns 201, or 200 if this key sees the blob already. Replaces a damaged stored blob.
    """
    check_digest(digest)
    limit = services.settings.max_blob_bytes
    length = announced_length(request)
    if length is not None and length > limit:
        raise too_large(limit)
    caller = principal.caller
    visible, damaged, allowance = await in_thread(_upload_state, services, caller, digest)
    if allowance is not None and allowance[0] < (length or 1):
        raise allowance[1]
    async with contextmanager_in_threadpool(
        services.registry.blobs.writer(digest, max_bytes=limit, length=length)
    ) as writer:
        size = await _receive_blob(request, writer, limit, allowance)
        await in_thread(_commit, services, caller, writer, digest, size, repaired=damaged)
    return _stored(digest, size, status=200 if visible else 201)


@router.head("/{digest}", response_class=Response, responses=NOT_MODIFIED)
def head_blob(request: Request, digest: str, services: AppServices, principal: Either) -> Response:
    """Check that a blob exists and that this key sees it; returns its size."""
    size = _size(digest, services, principal, read=False)
    if principal.has("write"):
        renew_blob(services.registry, digest, size)
    return _answer(request, digest, size, services)


@router.get("/{digest}", response_class=Response, responses=BYTES)
def get_blob(request: Request, digest: str, services: AppServices, principal: Reader) -> Response:
    """Download a blob; supports ETag, If-None-Match and a single Range."""
    return _answer(request, digest, _size(digest, services, principal, read=True), services)


def _stored(digest: str, size: int, *, status: int) -> Response:
    """The answer for a blob that is stored now."""
    headers = {"location": f"/v1/blobs/{digest}", "etag": f'"{digest}"'}
    return JSONResponse(BlobStored(digest=digest, size=size).model_dump(), status_code=status, headers=headers)


def _size(digest: str, services: AppServices, principal: Principal, *, read: bool) -> int:
    """Return the size of a blob that the key sees, verified if it is to be `read`; raises NotFound, DamagedBlob."""
    check_digest(digest)
    with services.registry.database.read() as catalogue:
        visible = catalogue.blobs.is_visible(principal.namespaces, digest)
    if not visible:
        raise NotFound("There is no such blob, or this key does not see it.", param="digest")
    blobs = services.registry.blobs
    return blobs.size(digest) if read else blobs.size_unverified(digest)


def _answer(request: Request, digest: str, size: int, services: AppServices) -> Response:
    return ranged(request, digest=digest, size=size, open=lambda: services.registry.blobs.open(digest))


def _upload_state(services: AppServices, caller: Caller, digest: str) -> tuple[bool, bool, ByteAllowance | None]:
    """Return True if the key sees the blob, True if the stored blob is damaged, and the allowance for an upload."""
    with services.registry.database.read() as catalogue:
        visible = catalogue.blobs.is_visible(caller.namespaces, digest)
    return visible, is_damaged(services.registry, digest), room_for_blob(services.registry, caller, digest)


def _commit(
    services: AppServices, caller: Caller, writer: BlobWriter, digest: str, size: int, *, repaired: bool
) -> None:
    """Store the received blob and record it, in one thread, which a disconnected client does not interrupt."""
    writer.commit()
    registry = services.registry
    with deleted_unless_recorded(registry, [digest]), registry.database.write() as catalogue:
        record_blob(registry, catalogue, caller, digest, size, repaired=repaired)


async def _receive_blob(request: Request, writer: BlobWriter, limit: int, allowance: ByteAllowance | None) -> int:
    """Write the body while it arrives, and return its size."""
    most = limit if allowance is None else min(limit, allowance.max_bytes)
    try:
        return await write_body(request, writer.write, limit=most)
    except TooLarge as error:
        raise error if allowance is None or most == limit else allowance.error from None
    except ClientDisconnect as error:
        raise DigestMismatch("The upload ended before all of it had come.", param="digest") from error
