"""Rows as a hub describes repositories: to one revision all of it, in lists what is known without its files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from registry.catalogue.rows import ListedRow
from registry.formats.card import card_fields
from registry.formats.how_to_load import library_of
from registry.formats.peft.writing import is_pefts
from service.http.hub_revisions import Revision, etag_of_file, git_oid, pointer
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
from service.http.version_files import VersionFile, base_name, relation_of
from service.keys import Principal
from service.parts import Parts


def repository_body(revision: Revision, parts: Parts, *, blobs: bool = False) -> HubModel:
    """A repository at one revision; with `blobs` its files have sizes and digests."""
    files = [_sibling(one) if blobs else Sibling(rfilename=one.name) for one in revision.files.values()]
    listed = listed_body(revision.row, parts)
    return listed.model_copy(update={"sha": revision.commit, "siblings": files})


def listed_body(row: ListedRow, parts: Parts) -> HubModel:
    """A repository as it is listed."""
    base, library = base_name(row, parts), library_of(row.config)
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
    known += ["lora"] if is_pefts(row.config) and row.config.method == "lora" else []
    return list(dict.fromkeys([*row.card.tags, *known]))


def tree_files(files: Sequence[VersionFile]) -> list[TreeFile]:
    """Files as the list of a tree has them."""
    return [
        TreeFile(path=one.name, size=one.size, oid=git_oid(one), lfs=None if one.data is not None else _lfs(one))
        for one in files
    ]


def user_body(who: Principal) -> HubUser:
    """Whose key it is that asks."""
    namespaces = [HubNamespace(name=name) for name in who.namespaces or ()]
    role: Literal["read", "write"] = "write" if who.has("write") else "read"
    return HubUser(
        name=who.key_id, orgs=namespaces, auth=HubAuth(accessToken=HubToken(displayName=who.key_id, role=role))
    )


def _sibling(file: VersionFile) -> Sibling:
    lfs = None
    if file.data is None:
        lfs = SiblingOfLfs(sha256=etag_of_file(file), size=file.size, pointerSize=len(pointer(file)))
    return Sibling(rfilename=file.name, size=file.size, blobId=git_oid(file), lfs=lfs)


def _lfs(file: VersionFile) -> FileOfLfs:
    return FileOfLfs(oid=etag_of_file(file), size=file.size, pointerSize=len(pointer(file)))
