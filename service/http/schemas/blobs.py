"""Bodies of `/v1/blobs`."""

from __future__ import annotations

from typing import Literal

from registry.names import Digest
from service.http.schemas.wire import Wire


class BlobStored(Wire):
    """An uploaded blob."""

    object: Literal["blob"] = "blob"
    digest: Digest
    size: int
