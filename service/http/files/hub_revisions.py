"""Versions as a Hugging Face hub describes them: a name is a repository; a version, alias, `main` or commit a revision.

A commit is 40 hex digits: 16 of a hash of the weight files, 16 of a hash of the files made from the card, and the
version number. So a commit always has the same bytes and can be cached. The weight files never change. Changing the
card makes another commit; the older one then has the weight files only.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from registry.catalogue import Catalogue
from registry.catalogue.rows import AdapterRow, ListedRow, Namespaces
from registry.errors import InvalidName, NotFound, Retired, SoupError
from registry.formats import CONFIG_FILE, SAMPLES_FILE, WEIGHTS_FILE
from registry.formats.card import card_fields
from registry.formats.loading_text import library_of
from registry.formats.peft.writing import is_peft_config
from registry.names import NameRef, digest_of, parse_ref
from service.access.keys import Principal
from service.http.files.version_files import VersionFile, base_name, files_of, relation_of
from service.http.schemas.hub import (
    FileOfLfs,
    HubAuth,
    HubModel,
    HubNamespace,
    HubToken,
    HubUser,
    Sibling,
    SiblingOfLfs,
    TreeFile,
)
from service.services import Services

MAIN = "main"
"""The default revision: the newest live version."""
REPOSITORY, REVISION, FILE = "repository", "revision", "path"
CODES: Mapping[str | None, str] = {REPOSITORY: "RepoNotFound", REVISION: "RevisionNotFound", FILE: "EntryNotFound"}
"""`param` of an error -> its header `x-error-code`, which clients rely on."""
COMMIT = re.compile(r"[0-9a-f]{40}", re.ASCII)
MOST_VERSION = 999_999_999
LASTING = frozenset({CONFIG_FILE, WEIGHTS_FILE, SAMPLES_FILE})
"""Files that never change after a push; the others depend on the card."""
PIECE = slice(7, 23)
"""The first 16 hex digits of a digest `sha256:...`."""


@dataclass(frozen=True)
class Revision:
    """A version at a commit, the named one or the current one, with the files of that commit."""

    row: AdapterRow
    commit: str
    files: Mapping[str, VersionFile]


def revision_of(services: Services, principal: Principal, ns: str, name: str, revision: str) -> Revision:
    """Return the version that a revision of `ns/name` names now, with the files of its commit.

    Raises NotFound or Retired with REPOSITORY or REVISION as `param`.
    """
    row = _version_of(services, principal, ns, name, revision)
    files = files_of(row, services)
    current = commit_of(row, files)
    if not COMMIT.fullmatch(revision) or revision == current:
        return Revision(row, current, files)
    if revision[:16] != current[:16]:
        raise NotFound(f"{ns}/{name} has no revision '{revision}'.", param=REVISION)
    return Revision(row, revision, {name: file for name, file in files.items() if name in LASTING})


def _version_of(services: Services, principal: Principal, ns: str, name: str, revision: str) -> AdapterRow:
    """Return the row that a revision of `ns/name` names now; raises as `revision_of` does."""
    with services.registry.database.read() as catalogue:
        newest = repository(catalogue, principal.namespaces, ns, name)
        if revision == MAIN:
            return newest
        try:
            return catalogue.adapters.resolve(principal.namespaces, _ref(ns, name, revision))
        except (InvalidName, NotFound, Retired) as error:
            raise _absent(error, f"{ns}/{name} has no revision '{revision[:80]}'.", REVISION) from None


def repository(catalogue: Catalogue, visible: Namespaces, ns: str, name: str) -> AdapterRow:
    """Return the newest live version of a name; raises NotFound or Retired."""
    try:
        ref = parse_ref(f"{ns}/{name}")
        if not isinstance(ref, NameRef) or ref != NameRef(namespace=ns, name=name):
            raise InvalidName("A repository is named without a version.")
        return catalogue.adapters.resolve(visible, ref)
    except (InvalidName, NotFound, Retired) as error:
        message = f"There is no {ns[:80]}/{name[:80]} here, or this key does not see it."
        raise _absent(error, message, REPOSITORY) from None


def commit_of(row: AdapterRow, files: Mapping[str, VersionFile]) -> str:
    """Return the commit of a version with its current files."""
    lasting = {name: file.digest for name, file in files.items() if name in LASTING}
    changing = {name: file.digest for name, file in files.items() if name not in LASTING}
    return f"{digest_of(lasting)[PIECE]}{digest_of(changing)[PIECE]}{row.version:08x}"


def git_oid(file: VersionFile) -> str:
    """Return git's sha1 of a file; for a stored blob, of its LFS pointer."""
    data = pointer(file) if file.data is None else file.data
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


def pointer(file: VersionFile) -> bytes:
    """Return the git LFS pointer of a file that is stored as a blob."""
    return f"version https://git-lfs.github.com/spec/v1\noid {file.digest}\nsize {file.size}\n".encode()


def etag_of_file(file: VersionFile) -> str:
    """Return the ETag that clients use as a cache key: the sha256 of a stored blob, else git's sha1."""
    return git_oid(file) if file.data is not None else file.digest.removeprefix("sha256:")


def problem_headers(error: SoupError) -> dict[str, str]:
    """Return the headers in which a client reads the code and the message of an error."""
    message = "".join(char if " " <= char <= "~" else "?" for char in error.message)
    code = CODES.get(error.param) if isinstance(error, NotFound | Retired) else None
    return {"x-error-message": message[:500], **({"x-error-code": code} if code else {})}


def _ref(ns: str, name: str, revision: str) -> NameRef:
    """Parse a revision as a version or an alias; raises InvalidName."""
    if COMMIT.fullmatch(revision):
        version = int(revision[32:], 16)
        if not 1 <= version <= MOST_VERSION:
            raise InvalidName("No version has this number.")
        return NameRef(namespace=ns, name=name, version=version)
    ref = parse_ref(f"{ns}/{name}@{revision}")
    assert isinstance(ref, NameRef)  # `repository` has checked the name
    return ref


def _absent(error: SoupError, message: str, param: str) -> SoupError:
    """Return a Retired error with its message, any other as NotFound with `message`, which reveals nothing more."""
    return Retired(error.message, param=param) if isinstance(error, Retired) else NotFound(message, param=param)


def repository_body(revision: Revision, services: Services, *, blobs: bool = False) -> HubModel:
    """Return a repository at one revision; with `blobs` its files have sizes and digests."""
    files = [_sibling(file) if blobs else Sibling(rfilename=file.name) for file in revision.files.values()]
    return listed_body(revision.row, services).model_copy(update={"sha": revision.commit, "siblings": files})


def listed_body(row: ListedRow, services: Services) -> HubModel:
    """Return a repository as an entry of a list, without commit and files."""
    base, library = base_name(row, services), library_of(row.config)
    card = card_fields(row.card, base_model=base, owner=row.owner, relation=relation_of(row), library=library)
    return HubModel(
        id=f"{row.namespace}/{row.name}",
        author=row.namespace,
        lastModified=row.created_at,
        library_name=library,
        tags=tags_of(row, base),
        cardData=card,
    )


def tags_of(row: ListedRow, base: str) -> list[str]:
    """Return the tags of a repository: those of its card, and those that the registry derives."""
    derived = [library_of(row.config), "safetensors", row.config.method, row.kind]
    derived += [f"base_model:{base}", f"base_model:{relation_of(row)}:{base}"]
    derived += [f"license:{row.card.license}"] if row.card.license else []
    derived += ["lora"] if is_peft_config(row.config) and row.config.method == "lora" else []
    return list(dict.fromkeys([*row.card.tags, *derived]))


def tree_files(files: Sequence[VersionFile]) -> list[TreeFile]:
    """Return files as entries of a tree."""
    return [
        TreeFile(path=file.name, size=file.size, oid=git_oid(file), lfs=None if file.data is not None else _lfs(file))
        for file in files
    ]


def user_body(principal: Principal) -> HubUser:
    """Return a key as a hub's user, with its namespaces as organisations."""
    namespaces = [HubNamespace(name=name) for name in principal.namespaces or ()]
    role: Literal["read", "write"] = "write" if principal.has("write") else "read"
    return HubUser(
        name=principal.key_id,
        orgs=namespaces,
        auth=HubAuth(accessToken=HubToken(displayName=principal.key_id, role=role)),
    )


def _sibling(file: VersionFile) -> Sibling:
    lfs = None
    if file.data is None:
        lfs = SiblingOfLfs(sha256=etag_of_file(file), size=file.size, pointerSize=len(pointer(file)))
    return Sibling(rfilename=file.name, size=file.size, blobId=git_oid(file), lfs=lfs)


def _lfs(file: VersionFile) -> FileOfLfs:
    return FileOfLfs(oid=etag_of_file(file), size=file.size, pointerSize=len(pointer(file)))
