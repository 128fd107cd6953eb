"""Redirect downloads of weights to the object store by a signed URL, if the operator enables it.

Called by the routes of an adapter's files, after the key was checked. Only weights are redirected: the URL works for
anybody who has it, and samples are private text. The store's bytes may never have been verified by this server, so the
client has to verify the digest, which it knows.
"""

from __future__ import annotations

from typing import Any

from fastapi import Request
from fastapi.responses import RedirectResponse, Response

from registry.formats import WEIGHTS_FILE
from service.http.files.ranges import names_etag
from service.http.files.version_files import VersionFile
from service.services import Services

ELSEWHERE: dict[int | str, dict[str, Any]] = {307: {"description": "Weights, where the server sends to its store"}}


def store_redirect(request: Request, services: Services, file: VersionFile, *, etag: str) -> Response | None:
    """Return a redirect to the store for a GET of weights, None if this server is to answer.

    Raises DamagedBlob if the blob is missing or known to be damaged.
    """
    if services.signed_url is None or request.method != "GET" or file.name != WEIGHTS_FILE or file.data is not None:
        return None
    if names_etag(request.headers.get("if-none-match"), f'"{etag}"'):
        return None
    services.registry.blobs.size_unverified(file.digest)  # raises for a missing blob
    headers = {"cache-control": "no-store", "etag": f'"{etag}"', "referrer-policy": "no-referrer"}
    return RedirectResponse(services.signed_url(file.digest), status_code=307, headers=headers)
