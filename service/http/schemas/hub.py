"""Bodies of the hub API, as a Hugging Face client reads them: their names are that client's, not ours."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from service.http.schemas.wire import Wire


class FileOfLfs(Wire):
    """What is said of a file that is stored by its digest, in the list of a tree."""

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
    """Git's sha1 of the file, or of its pointer where it is stored by its digest."""
    lfs: FileOfLfs | None = None


class SiblingOfLfs(Wire):
    """The same in the description of a repository, by other names."""

    sha256: str
    size: int
    pointerSize: int


class Sibling(Wire):
    """A file of a repository; its size and digests where they were asked for."""

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
    """A revision by its name, and the commit that it is."""

    name: str
    ref: str
    targetCommit: str


class HubRefs(Wire):
    """`main` and the aliases are branches, which move; the numbers of versions are tags, which do not."""

    branches: list[HubRef]
    converts: list[HubRef]
    tags: list[HubRef]
    pullRequests: list[HubRef]


class HubNamespace(Wire):
    """A namespace, as an organisation."""

    type: Literal["org"] = "org"
    name: str


class HubToken(Wire):
    """What a key is called and may do."""

    displayName: str
    role: Literal["read", "write"]


class HubAuth(Wire):
    """How somebody has signed in."""

    type: Literal["access_token"] = "access_token"
    accessToken: HubToken


class HubUser(Wire):
    """Whose key it is that asks: a key's id, and the namespaces it sees; none are listed where it sees all."""

    type: Literal["user"] = "user"
    name: str
    orgs: list[HubNamespace]
    auth: HubAuth
