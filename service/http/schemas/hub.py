"""Bodies of the hub API, as a Hugging Face client reads them: their names are that client's, not ours."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from service.http.schemas.wire import Wire


class FileOfLfs(Wire):
    """The LFS fields of a file stored by its digest, in the list of a tree."""

    oid: str
    """Its sha256, without a prefix."""
    size: int
    pointerSize: int


class TreeFile(Wire):
    """A file of a revision."""

    type: Literal["file"] = "file"
    path: str
    size: int
    oid: str
    """Git's sha1 of the file; for a file stored by its digest, of its pointer."""
    lfs: FileOfLfs | None = None


class SiblingOfLfs(Wire):
    """The LFS fields in the description of a repository, which have other names there."""

    sha256: str
    size: int
    pointerSize: int


class Sibling(Wire):
    """A file of a repository, with its size and digests if requested."""

    rfilename: str
    size: int | None = None
    blobId: str | None = None
    lfs: SiblingOfLfs | None = None


class HubModel(Wire):
    """A repository: the versions of a name. `sha` and `siblings` are those of one revision."""

    id: str
    author: str
    sha: str | None = None
    lastModified: datetime
    """When the version was pushed."""
    private: bool = True
    gated: bool = False
    disabled: bool = False
    library_name: str
    tags: list[str]
    cardData: dict[str, Any]
    siblings: list[Sibling] | None = None


class HubRef(Wire):
    """The name of a revision, and its commit."""

    name: str
    ref: str
    targetCommit: str


class HubRefs(Wire):
    """Branches, which move: `main` and the aliases. Tags, which do not: the version numbers."""

    branches: list[HubRef]
    converts: list[HubRef]
    tags: list[HubRef]
    pullRequests: list[HubRef]


class HubNamespace(Wire):
    """A namespace, as an organisation."""

    type: Literal["org"] = "org"
    name: str


class HubToken(Wire):
    """The name and the role of a key."""

    displayName: str
    role: Literal["read", "write"]


class HubAuth(Wire):
    """How the caller has signed in."""

    type: Literal["access_token"] = "access_token"
    accessToken: HubToken


class HubUser(Wire):
    """The key of the request: its id, and the namespaces that it sees; none are listed if it sees all."""

    type: Literal["user"] = "user"
    name: str
    orgs: list[HubNamespace]
    auth: HubAuth
