"""The read API of a Hugging Face hub over the registry: repositories, their revisions, and files by name.

For clients with `HF_ENDPOINT` set to this server. Content, access and errors are those of `/v1/adapters`, in the hub's
format. A file name is looked up among the files of a version and never opened as a path.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from pydantic import Field
from starlette.types import Receive, Scope, Send

from registry.catalogue.rows import ListedRow
from registry.errors import InvalidParameter, NotFound
from registry.formats.loading_text import ADAPTERSOUP, PEFT
from registry.names import is_part
from registry.spec import UNION_MEMBERS
from registry.spec.frozen import Frozen
from service.http.app_services import AppServices
from service.http.files.hub_revisions import (
    COMMIT,
    FILE,
    MAIN,
    Revision,
    commit_of,
    etag_of_file,
    listed_body,
    problem_headers,
    repository,
    repository_body,
    revision_of,
    tags_of,
    tree_files,
    user_body,
)
from service.http.files.ranges import NOT_MODIFIED, REVALIDATE, ranged
from service.http.files.version_files import FILE_BYTES, base_name, files_of, store_redirect
from service.http.requests.bodies import CheckedRoute
from service.http.requests.parameters import Cursor
from service.http.schemas.hub import HubModel, HubRef, HubRefs, HubUser, TreeFile
from service.http.security.auth import Reader
from service.services import Services


class HubRoute(CheckedRoute):
    """A route whose errors carry the headers that a hub's client reads."""

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request, with `problem_headers` for errors."""
        scope.setdefault("state", {})["problem_headers"] = problem_headers
        await super().handle(scope, receive, send)


router = APIRouter(tags=["hub"], route_class=HubRoute)

COMMIT_HEADER = "x-repo-commit"
DERIVED_TAGS = frozenset({PEFT, ADAPTERSOUP, "safetensors", "adapter", "soup", *UNION_MEMBERS["config"]})
"""Tags that a repository may have without them being on its card."""
MOST_REFS = 1000
"""Most versions listed as tags, the newest ones."""
IGNORED = frozenset({"full", "config", "cardData", "expand", "blobs", "securityStatus"})
"""Query parameters that ask for more details, which every answer has or no repository has."""
FILTERS = frozenset({"author", "search", "filter", "sort", "limit", "cursor"})
SORTS = frozenset({"createdAt", "lastModified"})
"""Values of `sort` that are accepted: lists are always sorted by time, newest first."""


@router.get("/api/whoami-v2")
def hub_whoami(principal: Reader) -> HubUser:
    """The key of the request, as a user of the hub."""
    return user_body(principal)


# --- repositories ---------------------------------------------------------------------------------


class HubListQuery(Frozen, extra="ignore"):
    """Filters of a list of repositories, and its paging; `_check_query` refuses other parameters."""

    author: str | None = None
    """A namespace."""
    search: str | None = None
    """Words to search for, as in `q` of /v1/adapters."""
    filter: list[str] | None = None
    """Tags; repeat to require several."""
    sort: str | None = None
    limit: int | None = Field(None, ge=1)
    """Repositories in a page, up to the server's maximum."""
    cursor: Cursor = None


@router.get("/api/models", response_model_exclude_none=True)
def hub_list(
    request: Request,
    response: Response,
    services: AppServices,
    principal: Reader,
    query: Annotated[HubListQuery, Query()],
) -> list[HubModel]:
    """Repositories this key sees, newest first, each name once; `link` leads to the next page.

    A page may have fewer repositories than `limit` if it filters by a tag that is in no card, such as `peft`.
    """
    _check_query(request, query.sort)
    size = min(query.limit or services.settings.page_size, services.settings.max_page_size)
    filter_tags = query.filter or []
    card_tags = [tag for tag in filter_tags if is_part(tag) and tag not in DERIVED_TAGS]
    with services.registry.database.read() as catalogue:
        page = catalogue.adapters.list(
            principal.namespaces,
            namespace=query.author,
            q=query.search or None,
            tags=card_tags,
            newest=True,
            limit=size,
            cursor=query.cursor,
        )
    if page.next_cursor is not None:
        response.headers["link"] = f'<{request.url.include_query_params(cursor=page.next_cursor)}>; rel="next"'
    return [listed_body(row, services) for row in page.rows if _has_tags(row, services, filter_tags)]


@router.get("/api/models/{ns}/{name}", response_model_exclude_none=True)
def hub_repository(ns: str, name: str, services: AppServices, principal: Reader, blobs: bool = False) -> HubModel:
    """A repository in its current state; with `blobs` its files have sizes and digests."""
    return repository_body(revision_of(services, principal, ns, name, MAIN), services, blobs=blobs)


@router.get("/api/models/{ns}/{name}/revision/{revision:path}", response_model_exclude_none=True)
def hub_revision(
    ns: str, name: str, revision: str, services: AppServices, principal: Reader, blobs: bool = False
) -> HubModel:
    """A repository at a revision: `main`, an alias, the number of a version, or a commit."""
    return repository_body(revision_of(services, principal, ns, name, revision), services, blobs=blobs)


@router.get("/api/models/{ns}/{name}/auth-check", status_code=204, response_class=Response)
def hub_check(ns: str, name: str, services: AppServices, principal: Reader) -> Response:
    """Check that this key sees a repository."""
    with services.registry.database.read() as catalogue:
        repository(catalogue, principal.namespaces, ns, name)
    return Response(status_code=204)


@router.get("/api/models/{ns}/{name}/refs")
def hub_refs(ns: str, name: str, services: AppServices, principal: Reader) -> HubRefs:
    """The revisions of a repository: `main` and its aliases as branches, its newest live versions as tags.

    Leaves out aliases that look like a commit, because a revision of that form names a commit.
    """
    with services.registry.database.read() as catalogue:
        newest = repository(catalogue, principal.namespaces, ns, name)
        versions = catalogue.adapters.live_versions(ns, name, limit=MOST_REFS)
        aliased = catalogue.adapters.aliased_versions(ns, name)
        aliases = {row.alias: row.version for row in catalogue.aliases.list(ns, name)}
    rows = {row.version: row for row in [newest, *versions, *aliased]}
    commits = {version: commit_of(row, files_of(row, services)) for version, row in rows.items()}
    named = {alias: version for alias, version in aliases.items() if alias != MAIN and not COMMIT.fullmatch(alias)}
    branches = {MAIN: newest.version, **named}
    return HubRefs(
        branches=[_ref("heads", name, commits[version]) for name, version in branches.items() if version in commits],
        tags=[_ref("tags", str(row.version), commits[row.version]) for row in versions],
        converts=[],
        pullRequests=[],
    )


# --- files ----------------------------------------------------------------------------------------


@router.get("/api/models/{ns}/{name}/tree/{revision}", response_model_exclude_none=True)
def hub_tree(ns: str, name: str, revision: str, services: AppServices, principal: Reader) -> list[TreeFile]:
    """The files of a revision."""
    return tree_files(list(revision_of(services, principal, ns, name, revision).files.values()))


@router.get("/api/models/{ns}/{name}/tree/{revision}/{path:path}", response_model_exclude_none=True)
def hub_folder(
    ns: str, name: str, revision: str, path: str, services: AppServices, principal: Reader
) -> list[TreeFile]:
    """The files of a folder of a revision; versions have no folders, so any path but the root is an error that names
    it.
    """
    resolved = revision_of(services, principal, ns, name, revision)
    if path.strip("/"):
        raise _no_file(resolved, path)
    return tree_files(list(resolved.files.values()))


@router.head("/{ns}/{name}/resolve/{revision}/{path:path}", response_class=Response, responses=NOT_MODIFIED)
def hub_head(
    request: Request, ns: str, name: str, revision: str, path: str, services: AppServices, principal: Reader
) -> Response:
    """The commit, digest and size of a file of a revision."""
    return _file(request, services, revision_of(services, principal, ns, name, revision), path)


@router.get("/{ns}/{name}/resolve/{revision}/{path:path}", response_class=Response, responses=FILE_BYTES)
def hub_file(
    request: Request, ns: str, name: str, revision: str, path: str, services: AppServices, principal: Reader
) -> Response:
    """A file of a revision; supports ETag and a single Range."""
    return _file(request, services, revision_of(services, principal, ns, name, revision), path)


def _file(request: Request, services: Services, revision: Revision, path: str) -> Response:
    request.state.problem_headers = lambda error: {**problem_headers(error), COMMIT_HEADER: revision.commit}
    file = revision.files.get(path)
    if file is None:
        raise _no_file(revision, path)
    etag = etag_of_file(file)
    answer = store_redirect(request, services, file, etag=etag) or ranged(
        request,
        digest=etag,
        size=file.size_for(request.method),
        open=file.open,
        filename=file.name,
        cache=REVALIDATE,
    )
    answer.headers[COMMIT_HEADER] = revision.commit
    if file.data is None:
        answer.headers.update({"x-linked-etag": f'"{etag}"', "x-linked-size": str(file.size)})
    return answer


def _no_file(revision: Revision, path: str) -> NotFound:
    names = ", ".join(revision.files)
    return NotFound(
        f"{revision.row.ref}, commit {revision.commit}, has no file '{path[:80]}'; it has {names}.", param=FILE
    )


def _ref(kind: str, name: str, commit: str) -> HubRef:
    return HubRef(name=name, ref=f"refs/{kind}/{name}", targetCommit=commit)


# --- lists ----------------------------------------------------------------------------------------


def _check_query(request: Request, sort: str | None) -> None:
    """Raise InvalidParameter for an unknown filter or sort order."""
    for name in request.query_params:
        if name not in FILTERS | IGNORED:
            raise InvalidParameter(
                f"Repositories are listed by {', '.join(sorted(FILTERS - {'cursor', 'limit', 'sort'}))} here, "
                f"not by '{name[:40]}'.",
                param=name[:40],
            )
    if sort is not None and sort not in SORTS:
        raise InvalidParameter(
            f"'sort' is {' or '.join(sorted(SORTS))}, with the newest first, and not '{sort[:40]}'.",
            param="sort",
        )


def _has_tags(row: ListedRow, services: Services, tags: Sequence[str]) -> bool:
    return not tags or set(tags) <= set(tags_of(row, base_name(row, services)))
