"""Versions as a hub describes them: a name is a repository, a version, alias, `main` or commit its revision.

A commit is 40 hex digits: 16 of the files that stay as they were pushed, 16 of those that tell of the card, and the
number of the version. So one commit has the same bytes for ever, and a cache that knows it has its files. A card that
is changed makes another commit; under the older one the files that stay are there, and those of its card are not.
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
from registry.formats.peft.writing import is_peft_config
from registry.formats.usage import library_of
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
from service.parts import Services

MAIN = "main"
"""The revision of whoever names none: what the name means without a version."""
REPOSITORY, REVISION, FILE = "repository", "revision", "path"
CODES: Mapping[str | None, str] = {REPOSITORY: "RepoNotFound", REVISION: "RevisionNotFound", FILE: "EntryNotFound"}
"""What an error is about -> the header `x-error-code`, by which a client tells them apart."""
COMMIT = re.compile(r"[0-9a-f]{40}", re.ASCII)
MOST_VERSION = 999_999_999
LASTING = frozenset({CONFIG_FILE, WEIGHTS_FILE, SAMPLES_FILE})
"""The files that stay as they were pushed; the others tell of the card, and change with it."""
PIECE = slice(7, 23)
"""16 hex digits of a digest."""


@dataclass(frozen=True)
class Revision:
    """A version as it was asked for; `commit` is the one that was named, else that of now, and `files` are its own."""

    row: AdapterRow
    commit: str
    files: Mapping[str, VersionFile]


def revision_of(services: Services, principal: Principal, ns: str, name: str, revision: str) -> Revision:
    """The version that a revision of `ns/name` means now, with the files that it has under that commit.

    Raises NotFound or Retired, whose `param` says whether it is the repository or the revision that is not there.
    """
    row = _version_of(services, principal, ns, name, revision)
    files = files_of(row, services)
    now = commit_of(row, files)
    if not COMMIT.fullmatch(revision) or revision == now:
        return Revision(row, now, files)
    if revision[:16] != now[:16]:
        raise NotFound(f"{ns}/{name} has no revision '{revision}'.", param=REVISION)
    return Revision(row, revision, {name: file for name, file in files.items() if name in LASTING})


def _version_of(services: Services, principal: Principal, ns: str, name: str, revision: str) -> AdapterRow:
    """The row that a revision of `ns/name` means now, a commit by its last digits; raises as `revision_of` does."""
    with services.registry.database.read() as catalogue:
        newest = repository(catalogue, principal.namespaces, ns, name)
        if revision == MAIN:
            return newest
        try:
            return catalogue.adapters.resolve(principal.namespaces, _ref(ns, name, revision))
        except (InvalidName, NotFound, Retired) as error:
            raise _absent(error, f"{ns}/{name} has no revision '{revision[:80]}'.", REVISION) from None


def repository(catalogue: Catalogue, visible: Namespaces, ns: str, name: str) -> AdapterRow:
    """The newest live version of a name; raises NotFound or Retired."""
    try:
        ref = parse_ref(f"{ns}/{name}")
        if not isinstance(ref, NameRef) or ref != NameRef(namespace=ns, name=name):
            raise InvalidName("A repository is named without a version.")
        return catalogue.adapters.resolve(visible, ref)
    except (InvalidName, NotFound, Retired) as error:
        absent = f"There is no {ns[:80]}/{name[:80]} here, or this key does not see it."
        raise _absent(error, absent, REPOSITORY) from None


def commit_of(row: AdapterRow, files: Mapping[str, VersionFile]) -> str:
    """The commit of a version with its files as they are now."""
    lasting = {name: file.digest for name, file in files.items() if name in LASTING}
    others = {name: file.digest for name, file in files.items() if name not in LASTING}
    return f"{digest_of(lasting)[PIECE]}{digest_of(others)[PIECE]}{row.version:08x}"


def git_oid(file: VersionFile) -> str:
    """The sha1 by which git knows a file; of a stored one, its pointer's."""
    data = pointer(file) if file.data is None else file.data
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


def pointer(file: VersionFile) -> bytes:
    """What git holds in the place of a file that is stored by its digest."""
    return f"version https://git-lfs.github.com/spec/v1\noid {file.digest}\nsize {file.size}\n".encode()


def etag_of_file(file: VersionFile) -> str:
    """What a client names a file's bytes by in its cache: the sha256 of a stored one, else git's sha1."""
    return git_oid(file) if file.data is not None else file.digest.removeprefix("sha256:")


def problem_headers(error: SoupError) -> dict[str, str]:
    """What a client reads of an error besides its status: what is not there, and the message."""
    told = "".join(char if " " <= char <= "~" else "?" for char in error.message)
    code = CODES.get(error.param) if isinstance(error, NotFound | Retired) else None
    return {"x-error-message": told[:500], **({"x-error-code": code} if code else {})}


def _ref(ns: str, name: str, revision: str) -> NameRef:
    """The version or alias that a revision names; raises InvalidName."""
    if COMMIT.fullmatch(revision):
        version = int(revision[32:], 16)
        if not 1 <= version <= MOST_VERSION:
            raise InvalidName("No version has this number.")
        return NameRef(namespace=ns, name=name, version=version)
    ref = parse_ref(f"{ns}/{name}@{revision}")
    assert isinstance(ref, NameRef)  # `repository` has seen to the name
    return ref


def _absent(error: SoupError, message: str, param: str) -> SoupError:
    """The same in words that say no more than that it is not there, but for what was retired."""
    return Retired(error.message, param=param) if isinstance(error, Retired) else NotFound(message, param=param)


def repository_body(revision: Revision, services: Services, *, blobs: bool = False) -> HubModel:
    """A repository at one revision; with `blobs` its files have sizes and digests."""
    files = [_sibling(one) if blobs else Sibling(rfilename=one.name) for one in revision.files.values()]
    listed = listed_body(revision.row, services)
    return listed.model_copy(update={"sha": revision.commit, "siblings": files})


def listed_body(row: ListedRow, services: Services) -> HubModel:
    """A repository as it is listed."""
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
    """What a repository is listed under: the tags of its card, and what the registry knows of it."""
    known = [library_of(row.config), "safetensors", row.config.method, row.kind]
    known += [f"base_model:{base}", f"base_model:{relation_of(row)}:{base}"]
    known += [f"license:{row.card.license}"] if row.card.license else []
    known += ["lora"] if is_peft_config(row.config) and row.config.method == "lora" else []
    return list(dict.fromkeys([*row.card.tags, *known]))


def tree_files(files: Sequence[VersionFile]) -> list[TreeFile]:
    """Files as the list of a tree has them."""
    return [
        TreeFile(path=one.name, size=one.size, oid=git_oid(one), lfs=None if one.data is not None else _lfs(one))
        for one in files
    ]


def user_body(principal: Principal) -> HubUser:
    """Whose key it is that asks."""
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
