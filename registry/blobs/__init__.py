"""Content-addressed bytes: a store is named by digests and nothing else, and what it acknowledged is durable."""

from registry.blobs.contract import (
    BlobStore,
    BlobWriter,
    LostPartError,
    OpenUpload,
    ServerBlobs,
    SetAside,
    UploadStore,
)
from registry.blobs.local import LocalBlobs
from registry.blobs.place import open_blobs
from registry.blobs.unfinished import Unfinished, UnfinishedFile

__all__ = [
    "BlobStore",
    "BlobWriter",
    "LocalBlobs",
    "LostPartError",
    "OpenUpload",
    "ServerBlobs",
    "SetAside",
    "Unfinished",
    "UnfinishedFile",
    "UploadStore",
    "open_blobs",
]
