"""`/v1/blobs/sha256:...`: upload, check and download bytes by their digest.

A blob is visible to the namespaces that uploaded it or own an adapter that uses it; for others it is a 404 like an
unknown one. A client must send a stored blob completely too, which proves that the client has it.
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request, Response
from fastapi.concurrency import contextmanager_in_threadpool
from fastapi.responses import JSONResponse
from starlette.requests import ClientDisconnect

from registry.blobs import BlobWriter
from registry.context import Caller
from registry.errors import DigestMismatch, NotFound, TooLarge
from registry.quotas import ByteAllowance
from registry.stored.files import deleted_unless_recorded
from registry.uploads.files import is_damaged, record_blob, renew_blob, room_for_blob, too_large
from service.access.keys import Principal
from service.http.app_services import AppServices
from service.http.files.ranges import BINARY, BYTES, NOT_MODIFIED, ranged
from service.http.requests.bodies import CheckedRoute
from service.http.requests.upload_body import announced_length, check_digest, write_body
from service.http.schemas.uploads import BlobStored
from service.http.security.auth import Reader, Writer, needs
from service.http.thread_turns import in_thread

router = APIRouter(prefix="/v1/blobs", tags=["blobs"], route_class=CheckedRoute)
Either = Annotated[Principal, Depends(needs("read", "write"))]
"""Principals that may check if a blob exists: writers do before they upload."""
_BODY: dict[str, Any] = {"requestBody": {"required": True, "content": BINARY}}
_KNOWN: dict[int | str, dict[str, Any]] = {200: {"model": BlobStored, "description": "Known already"}}


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
        size = await _receive(request, writer, limit, allowance)
        await in_thread(_commit, services, caller, writer, digest, size, repaired=damaged)
    stored = BlobStored(digest=digest, size=size)
    headers = {"location": f"/v1/blobs/{digest}", "etag": f'"{digest}"'}
    return JSONResponse(stored.model_dump(), status_code=200 if visible else 201, headers=headers)


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


async def _receive(request: Request, writer: BlobWriter, limit: int, allowance: ByteAllowance | None) -> int:
    """Write the body while it arrives, and return its size."""
    most = limit if allowance is None else min(limit, allowance.max_bytes)
    try:
        return await write_body(request, writer.write, limit=most)
    except TooLarge as error:
        raise error if allowance is None or most == limit else allowance.error from None
    except ClientDisconnect as error:
        raise DigestMismatch("The upload ended before all of it had come.", param="digest") from error
