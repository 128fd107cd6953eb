"""Static files of the pages, served without a key: style sheet, scripts and icon.

htmx is vendored as it was published (`vendored/`): VENDORED.json has its origin and the sha256 of every file.
The URL of a file has the digest of its content, so that browsers cache it without ever seeing an old version.
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

FOLDER = Path(__file__).parent
VENDORED = FOLDER / "vendored"
FILES = {
    "soup.css": (FOLDER / "static" / "soup.css", "text/css"),
    "soup.js": (FOLDER / "static" / "soup.js", "text/javascript"),
    "push.js": (FOLDER / "static" / "push.js", "text/javascript"),
    "icon.svg": (FOLDER / "static" / "icon.svg", "image/svg+xml"),
    "htmx.min.js": (VENDORED / "htmx.min.js", "text/javascript"),
}
IMMUTABLE = "public, max-age=31536000, immutable"


@dataclass(frozen=True)
class Asset:
    """A static file in memory, plain and gzipped."""

    data: bytes
    gzipped: bytes
    media_type: str
    digest: str


@cache
def load_asset(name: str) -> Asset:
    """The static file of this name; raises NotFound."""
    if name not in FILES:
        raise NotFound("There is nothing at this path.")
    path, media_type = FILES[name]
    data = path.read_bytes()
    return Asset(data, gzip.compress(data, 9, mtime=0), media_type, hashlib.sha256(data).hexdigest()[:16])


def asset_url(name: str) -> str:
    """The URL of a static file, with its digest."""
    return f"/assets/{name}?v={load_asset(name).digest}"


def asset_response(request: Request, name: str) -> Response:
    """A static file, gzipped if the browser accepts it; immutable at the URL that `asset_url` gives."""
    asset = load_asset(name)
    headers = {"vary": "accept-encoding", "etag": f'"{asset.digest}"'}
    headers["cache-control"] = IMMUTABLE if request.query_params.get("v") == asset.digest else "no-cache"
    if request.headers.get("if-none-match") == headers["etag"]:
        return Response(status_code=304, headers=headers)
    data = asset.data
    if "gzip" in request.headers.get("accept-encoding", ""):
        data, headers["content-encoding"] = asset.gzipped, "gzip"
    return Response(data, media_type=asset.media_type, headers=headers)
