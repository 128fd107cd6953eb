"""Bodies of `/v1/blobs` and `/v1/blobs/uploads`."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import Field

from registry.names import Digest
from service.http.schemas.wire import Listing, Wire


class BlobStored(Wire):
    """An uploaded blob."""

    object: Literal["blob"] = "blob"
    digest: Digest
    size: int


class NewUpload(Wire):
    """The digest and size of the whole, both optional: the digest finds the upload again, the size limits it."""

    digest: Digest | None = None
    size: int | None = Field(default=None, ge=0, lt=2**53)


class Upload(Wire):
    """An unfinished upload in parts: `offset` bytes are stored, and the next part begins there."""

    object: Literal["upload"] = "upload"
    id: str
    offset: int
    digest: Digest | None = None
    size: int | None = None
    created_at: datetime
    expires_at: datetime
    """When the upload expires; every part extends it."""


class UploadList(Listing[Upload]):
    """The unfinished uploads of a key, newest first."""
