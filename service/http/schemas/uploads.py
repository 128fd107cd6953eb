"""Bodies of `/v1/blobs` and `/v1/blobs/uploads`."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import Field

from registry.names import Digest
from service.http.schemas.wire import Wire


class BlobStored(Wire):
    """An uploaded blob."""

    object: Literal["blob"] = "blob"
    digest: Digest
    size: int


class NewUpload(Wire):
    """What an upload is to become, where that is known: by its digest it is found again, by its size it is bounded."""

    digest: Digest | None = None
    size: int | None = Field(default=None, ge=0, lt=2**53)


class Upload(Wire):
    """An upload in parts that is not finished: `offset` bytes are held, and the next part begins there."""

    object: Literal["upload"] = "upload"
    id: str
    offset: int
    digest: Digest | None = None
    size: int | None = None
    created_at: datetime
    expires_at: datetime
    """When it is removed; every part moves it on."""


class UploadList(Wire):
    """The unfinished uploads of a key, newest first."""

    object: Literal["list"] = "list"
    data: list[Upload]
