"""`/v1/blobs/sha256:...`: bytes by their digest: upload (streamed to disk, verified), existence, download.

A blob is visible through the namespaces that uploaded it or own something made of it; unknown and foreign are the
same 404. Who uploads what is stored already still sends all of it: only that shows that they have it.
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request, Response
from fastapi.concurrency import contextmanager_in_threadpool
from fastapi.responses import JSONResponse
from starlette.requests import ClientDisconnect

from registry.blobs import BlobWriter
from registry.context import Caller
from registry.errors import DigestMismatch, NotFound, QuotaExceeded, TooLarge
from registry.uploads.files import is_damaged, record_blob, renew_blob, room_for_blob, too_large
from service.access.keys import Principal
from service.http.app_parts import AppServices
from service.http.files.ranges import ranged
from service.http.requests.bodies import CheckedRoute
from service.http.requests.upload_body import announced_length, check_digest, write_body
from service.http.schemas.uploads import BlobStored
from service.http.security.auth import Reader, Writer, needs
from service.http.thread_turns import in_thread

router = APIRouter(prefix="/v1/blobs", tags=["blobs"], route_class=CheckedRoute)
Either = Annotated[Principal, Depends(needs("read", "write"))]
"""Who may ask whether a blob is there: writers ask before they upload."""

Left = tuple[int, QuotaExceeded] | None
"""What a quota leaves for an upload, and the refusal of more; None for no limit."""
_BINARY = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
_BODY: dict[str, Any] = {"requestBody": {"required": True, "content": _BINARY}}
_BYTES: dict[int | str, dict[str, Any]] = {200: {"content": _BINARY}, 206: {"content": _BINARY}}
_KNOWN: dict[int | str, dict[str, Any]] = {200: {"model": BlobStored, "description": "Known already"}}


@router.put("/{digest}", response_model=BlobStored, status_code=201, responses=_KNOWN, openapi_extra=_BODY)
async def put_blob(request: Request, digest: str, services: AppServices, principal: Writer) -> Response:
    """Upload a blob in one request; its length and digest are verified before anything is visible.

    201, or 200 where this key sees the blob already. Where what is stored was damaged, it is replaced.
    """
    check_digest(digest)
    limit = services.settings.max_blob_bytes
    length = announced_length(request)
    if length is not None and length > limit:
        raise too_large(limit)
    caller = principal.caller(request.state.request_id)
    known, damaged, left = await in_thread(_known, services, caller, digest)
    if left is not None and (left[0] < (length or 1)):
        raise left[1]
    async with contextmanager_in_threadpool(
        services.registry.blobs.writer(digest, max_bytes=limit, length=length)
    ) as writer:
        size = await _store(request, writer, limit, left)
    await in_thread(_record, services, caller, digest, size, repaired=damaged)
    stored = BlobStored(digest=digest, size=size)
    headers = {"location": f"/v1/blobs/{digest}", "etag": f'"{digest}"'}
    return JSONResponse(stored.model_dump(), status_code=200 if known else 201, headers=headers)


@router.head("/{digest}", response_class=Response)
def head_blob(request: Request, digest: str, services: AppServices, principal: Either) -> Response:
    """Whether a blob is there for this key, and its size."""
    size = _size(digest, services, principal, read=False)
    if principal.has("write"):
        renew_blob(services.registry, digest, size)
    return _answer(request, digest, size, services)


@router.get("/{digest}", response_class=Response, responses=_BYTES)
def get_blob(request: Request, digest: str, services: AppServices, principal: Reader) -> Response:
    """Download a blob: ETag, If-None-Match, and one Range."""
    return _answer(request, digest, _size(digest, services, principal, read=True), services)


def _size(digest: str, services: AppServices, principal: Principal, *, read: bool) -> int:
    """The size of a blob that the key sees, verified where it is to be `read`; raises NotFound, DamagedBlob."""
    check_digest(digest)
    if not _visible(services, principal, digest):
        raise NotFound("There is no such blob, or this key does not see it.", param="digest")
    blobs = services.registry.blobs
    return blobs.size(digest) if read else blobs.size_unverified(digest)


def _answer(request: Request, digest: str, size: int, services: AppServices) -> Response:
    return ranged(request, digest=digest, size=size, open=lambda: services.registry.blobs.open(digest))


def _known(services: AppServices, caller: Caller, digest: str) -> tuple[bool, bool, Left]:
    """Whether the key sees the blob, whether what is stored of it is damaged, and what a quota leaves for a new one."""
    with services.registry.database.read() as catalogue:
        known = catalogue.blobs.is_visible(caller.namespaces, digest)
    return known, is_damaged(services.registry, digest), room_for_blob(services.registry, caller, digest)


def _visible(services: AppServices, principal: Principal, digest: str) -> bool:
    with services.registry.database.read() as catalogue:
        return catalogue.blobs.is_visible(principal.namespaces, digest)


def _record(services: AppServices, caller: Caller, digest: str, size: int, *, repaired: bool) -> None:
    with services.registry.database.write() as catalogue:
        record_blob(services.registry, catalogue, caller, digest, size, repaired=repaired)


async def _store(request: Request, writer: BlobWriter, limit: int, left: Left) -> int:
    """Write the body as it comes and commit it; returns its size. Nothing is left where it fails."""
    most = limit if left is None else min(limit, left[0])
    try:
        size = await write_body(request, writer.write, limit=most)
    except TooLarge as error:
        raise error if left is None or most == limit else left[1] from None
    except ClientDisconnect as error:
        raise DigestMismatch("The upload ended before all of it had come.", param="digest") from error
    await in_thread(writer.commit)
    return size
