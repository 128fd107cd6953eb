"""The files of the pages that no key is needed for: style sheet, scripts and icon, read once, each with its digest.

htmx is kept in this repository as it was published (`vendored/`): VENDORED.json says from where, with the sha256 of
every file.
An address carries the digest of what is behind it, so that a browser asks for a file once and never has an old one.
"""

from __future__ import annotations

import gzip
import hashlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response

from registry.errors import NotFound

HERE = Path(__file__).parent
VENDORED = HERE / "vendored"
FILES = {
    "soup.css": (HERE / "static" / "soup.css", "text/css"),
    "soup.js": (HERE / "static" / "soup.js", "text/javascript"),
    "push.js": (HERE / "static" / "push.js", "text/javascript"),
    "icon.svg": (HERE / "static" / "icon.svg", "image/svg+xml"),
    "htmx.min.js": (VENDORED / "htmx.min.js", "text/javascript"),
}
FOR_EVER = "public, max-age=31536000, immutable"


@dataclass(frozen=True)
class Asset:
    """One file, as it is and packed."""

    data: bytes
    packed: bytes
    media_type: str
    digest: str


@cache
def asset(name: str) -> Asset:
    """A file by its name; raises NotFound."""
    if name not in FILES:
        raise NotFound("There is nothing at this path.")
    path, media_type = FILES[name]
    data = path.read_bytes()
    return Asset(data, gzip.compress(data, 9, mtime=0), media_type, hashlib.sha256(data).hexdigest()[:16])


def address(name: str) -> str:
    """Where a page finds a file."""
    return f"/assets/{name}?v={asset(name).digest}"


def answer(request: Request, name: str) -> Response:
    """A file, packed for whoever takes it so; it may be kept for ever by the address that `address` gives."""
    found = asset(name)
    headers = {"vary": "accept-encoding", "etag": f'"{found.digest}"'}
    headers["cache-control"] = FOR_EVER if request.query_params.get("v") == found.digest else "no-cache"
    if request.headers.get("if-none-match") == headers["etag"]:
        return Response(status_code=304, headers=headers)
    data = found.data
    if "gzip" in request.headers.get("accept-encoding", ""):
        data, headers["content-encoding"] = found.packed, "gzip"
    return Response(data, media_type=found.media_type, headers=headers)
