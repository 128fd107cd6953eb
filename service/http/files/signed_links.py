"""Downloads of weights that are sent to the object store, where the operator wants that, by a URL that lasts a while.

Called by the routes of an adapter's files, after the key was checked. Weights alone go there: a sample is text that a
namespace may not have others see, and whoever has the URL has the bytes. The store hands out what it holds, which this
server may never have hashed, so that whoever downloads has to: clients know the digest.
"""

from __future__ import annotations

from typing import Any

from fastapi import Request
from fastapi.responses import RedirectResponse, Response

from registry.formats import WEIGHTS_FILE
from service.http.files.ranges import names_etag
from service.http.files.version_files import VersionFile
from service.parts import Services

ELSEWHERE: dict[int | str, dict[str, Any]] = {307: {"description": "Weights, where the server sends to its store"}}


def sent_to_store(request: Request, services: Services, file: VersionFile, *, etag: str) -> Response | None:
    """The answer that sends a GET of weights to the store; None where this server answers it.

    Raises DamagedBlob where the blob is missing, or known to be damaged.
    """
    if services.signed_url is None or request.method != "GET" or file.name != WEIGHTS_FILE or file.data is not None:
        return None
    if names_etag(request.headers.get("if-none-match"), f'"{etag}"'):
        return None
    services.registry.blobs.size_unverified(file.digest)  # nobody is sent to what is not there
    headers = {"cache-control": "no-store", "etag": f'"{etag}"', "referrer-policy": "no-referrer"}
    return RedirectResponse(services.signed_url(file.digest), status_code=307, headers=headers)
