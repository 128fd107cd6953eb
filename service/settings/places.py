"""The settings of a server's folders, object store and Ray cluster; part of `service.settings`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Self

from pydantic import Field, field_validator, model_validator
from pydantic_settings import BaseSettings

from registry.spec.store import BlobPlace
from service.settings.limits import Bytes, Seconds

BUCKET = re.compile(r"(s3|gs|az)://[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9._=-]+)*/?|file:///[^?#@]+")
NO_BUCKET = (
    "it is s3://BUCKET/PREFIX, or the same with gs or az, or file:///FOLDER; without credentials, port or query: the "
    "store's own variables (AWS_ACCESS_KEY_ID, AWS_ENDPOINT_URL, ...) hold those"
)
DEFAULT_DATA = Path("soup-data")


class PlaceSettings(BaseSettings):
    """The folders of a server, and the bucket of its blobs and the Ray cluster that generates for it, if any."""

    ray_address: str | None = Field(
        None,
        description="Address of the Ray cluster's head (`10.0.0.5:6379`), whose replicas generate. Unset: this server "
        "generates.",
    )
    ray_app: str = Field(
        "soup",
        pattern=r"^[a-z0-9][a-z0-9-]{0,62}$",
        description="Name of the replicas, as given to `soup ray deploy`.",
    )
    ray_seconds: Seconds = Field(
        60.0, gt=0, description="How long a request waits until a replica on Ray accepts it; then 503."
    )
    data: Path = Field(
        DEFAULT_DATA,
        description="Data folder: the database, the blobs, caches and `admin.key`. Only one server at a time can use "
        "it.",
    )
    blobs: Path | None = Field(
        None,
        description="Folder of the blobs, which several servers on one PostgreSQL share; by default `blobs` in the "
        "data folder. New folders get mode 0700 and new files 0600. If a group can write to the folder, "
        "the group can also read and write new files.",
    )
    blobs_url: str | None = Field(
        None,
        description="Bucket of an object store, instead of the folder: `s3://BUCKET/PREFIX`, `gs://...`, `az://...` "
        "or `file:///FOLDER`. The variables of the store hold the credentials (`AWS_...`, `GOOGLE_...`, "
        "`AZURE_...`).",
    )
    blobs_seconds: float = Field(
        20.0, gt=0, le=240, description="How long the server retries a call to the object store before it answers 503."
    )
    blobs_cache_bytes: Bytes = Field(
        10 * 2**30,
        ge=0,
        description="Maximum size of the local cache of objects, in `blobs` of `SOUP_CACHE_DIR`. The server removes "
        "the least recently used objects first.",
    )
    blobs_presigned_seconds: int = Field(
        0,
        ge=0,
        le=86_400,
        description="Lifetime of a presigned URL of the bucket. The server redirects downloads of weights to such "
        "URLs. 0: downloads go through the server.",
    )
    cache_dir: Path | None = Field(
        None,
        description="Folder of caches: fingerprints, and objects of the bucket; by default `cache` in the data folder.",
    )

    @field_validator("blobs_url")
    @classmethod
    def _is_bucket(cls, value: str | None) -> str | None:
        if value is not None and BUCKET.fullmatch(value) is None:
            raise ValueError(NO_BUCKET)
        return value

    @model_validator(mode="after")
    def _one_place_of_blobs(self) -> Self:
        if self.blobs is not None and self.blobs_url is not None:
            raise ValueError("blobs are in a folder or in a bucket: set SOUP_BLOBS or SOUP_BLOBS_URL, not both")
        if self.blobs_presigned_seconds and (self.blobs_url is None or self.blobs_url.startswith("file:")):
            raise ValueError(
                "SOUP_BLOBS_PRESIGNED_SECONDS needs SOUP_BLOBS_URL with a bucket of s3, gs or az: a folder gives no "
                "signed URL"
            )
        return self

    @property
    def blobs_dir(self) -> Path:
        """Folder of the blob store."""
        return self.blobs or self.data / "blobs"

    @property
    def blob_place(self) -> BlobPlace:
        """The place of the blobs: `blobs_dir`, or a bucket with a local folder for unfinished uploads."""
        if self.blobs_url is None:
            return BlobPlace(folder=self.blobs_dir)
        return BlobPlace(
            folder=self.data / "unfinished",
            url=self.blobs_url,
            cache=self.cache / "blobs",
            cache_bytes=self.blobs_cache_bytes,
            seconds=self.blobs_seconds,
        )

    @property
    def cache(self) -> Path:
        """Folder of caches, safe to delete while the server is down."""
        return self.cache_dir or self.data / "cache"
