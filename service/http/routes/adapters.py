"""`/v1/adapters`: push, list, read, change, retire, restore and purge adapters; files, lineage and aliases.

`{name}` may end with `@2` or `@alias`; otherwise it names the newest live version. An adapter that the key does not see
gives 404, like an unknown one.
"""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request, Response

from registry.catalogue.rows import AdapterRow, AliasRow
from registry.errors import InvalidName, NotFound
from registry.lifecycle import changes
from registry.lifecycle.purge import purge
from registry.names import Digest, DigestRef, NameRef, check_alias, parse_ref, split_name
from registry.push import push
from registry.spec import BaseId, Manifest
from registry.spec.frozen import Frozen
from service.access.keys import Principal
from service.http.answers.lineage import lineage_of
from service.http.app_services import AppServices
from service.http.files.ranges import REVALIDATE, ranged
from service.http.files.version_files import FILE_BYTES, files_of, store_redirect
from service.http.models.named_models import adapter_named, name_ref
from service.http.requests.bodies import CheckedRoute
from service.http.requests.body_limits import LARGE, takes
from service.http.requests.parameters import Cursor, IfMatch, Limit, page_size
from service.http.schemas.adapters import (
    Adapter,
    AdapterList,
    AdapterPatch,
    Alias,
    AliasBody,
    AliasList,
    FileList,
    Lineage,
    Purged,
    StoredFile,
    adapter_body,
    listed_body,
)
from service.http.security.auth import Admin, Reader, Writer
from service.jobs.queue_limits import check_queue

router = APIRouter(prefix="/v1/adapters", tags=["adapters"], route_class=CheckedRoute)


@router.post("", status_code=201, responses={200: {"description": "Known already", "model": Adapter}})
@takes(LARGE)
def push_adapter(response: Response, body: Manifest, services: AppServices, principal: Writer) -> Adapter:
    """Push an adapter. Returns 201, or 200 if the name has these bytes already. A job embeds the sample.

    Warnings name ignored fields, and say if the adapter changes nothing in the base model.
    """
    namespace, _ = split_name(body.name)
    principal.check_write(namespace)
    if body.sample is not None:
        with services.registry.database.read() as catalogue:
            check_queue(catalogue, services.settings, "embed", principal.key_id)
    pushed = push(services.registry, principal.caller, body)
    services.jobs.wake()
    response.status_code = 201 if pushed.created else 200
    response.headers["location"] = f"/v1/adapters/{pushed.row.ref}"
    return adapter_body(pushed.row, job=pushed.job, warnings=pushed.warnings)


class AdapterListQuery(Frozen):
    """Filters of a list of adapters, and its paging."""

    base_model: BaseId | None = None
    method: str | None = None
    domain: str | None = None
    owner: str | None = None
    """The exact name of the owner."""
    namespace: str | None = None
    name: str | None = None
    """`law` in any namespace, or `team/law`."""
    tag: list[str] | None = None
    """Repeat to require several tags."""
    kind: Literal["adapter", "soup"] | None = None
    tuned_on: Digest | None = None
    q: str | None = None
    limit: Limit = None
    cursor: Cursor = None


@router.get("")
def list_adapters(services: AppServices, principal: Reader, query: Annotated[AdapterListQuery, Query()]) -> AdapterList:
    """Live adapters and soups this key sees, newest first, without their provenance.

    `q` searches name, domain, tags and card: each word of `q` must be, or begin, a word there. `tuned_on` is the digest
    of a sample: only adapters that have learnt from it, by training or through their ingredients.
    """
    size, filters = page_size(query.limit, services), query.model_dump(exclude={"tag", "limit"})
    with services.registry.database.read() as catalogue:
        page = catalogue.adapters.list(principal.namespaces, **filters, tags=query.tag or (), limit=size)
    return AdapterList(data=[listed_body(row) for row in page.rows], next_cursor=page.next_cursor)


@router.get("/{digest}")
def get_by_digest(digest: str, services: AppServices, principal: Reader) -> Adapter:
    """The adapter with this digest, `sha256:...`."""
    ref = parse_ref(digest)
    if not isinstance(ref, DigestRef):
        raise InvalidName("Adapters are read by 'sha256:...' or by namespace/name.", param="digest")
    with services.registry.database.read_autocommit() as catalogue:
        return adapter_body(catalogue.adapters.resolve(principal.namespaces, ref))


@router.get("/{ns}/{name}")
def get_adapter(ns: str, name: str, services: AppServices, principal: Reader) -> Adapter:
    """One adapter."""
    return adapter_body(adapter_named(services, principal, ns, name))


@router.patch("/{ns}/{name}")
def change_adapter(
    ns: str,
    name: str,
    body: AdapterPatch,
    services: AppServices,
    principal: Writer,
    if_match: IfMatch,
) -> Adapter:
    """Change the card or domain of one version, or the owner of all versions of its name.

    The selectors of its pools are fitted again, unless only the owner changes.
    """
    row = adapter_named(services, principal, ns, name)
    row = changes.change(services.registry, principal.caller, row.id, body.changes(), if_match=if_match)
    services.jobs.wake()
    return adapter_body(row)


@router.delete("/{ns}/{name}")
def retire_adapter(ns: str, name: str, services: AppServices, principal: Writer) -> AdapterList:
    """Retire one version, or every live version of a name without `@`. Soups made from it keep working."""
    rows = changes.retire(services.registry, principal.caller, name_ref(ns, name), is_admin=principal.has("admin"))
    services.jobs.wake()
    return AdapterList(data=[listed_body(row) for row in rows])


@router.post("/{ns}/{name}/restore")
def restore_adapter(ns: str, name: str, services: AppServices, principal: Writer, if_match: IfMatch) -> Adapter:
    """Restore a retired version, `name@version`; a live version does not change. The selectors of its pools are fitted
    again.
    """
    row = _any_version(services, principal, ns, name, verb="restore")
    restored = changes.restore(services.registry, principal.caller, row.id, if_match=if_match)
    services.jobs.wake()
    return adapter_body(restored)


def _any_version(services: AppServices, principal: Principal, ns: str, name: str, *, verb: str) -> AdapterRow:
    """The version that `name@version` names, live or retired; raises InvalidName for a name without a version."""
    ref = name_ref(ns, name)
    with services.registry.database.read() as catalogue:
        row = catalogue.adapters.find(principal.namespaces, ref)
    if ref.version is None:
        raise InvalidName(f"Say which version of {ns}/{ref.name} to {verb}, as {ns}/{ref.name}@1.", param="name")
    return row


@router.get("/{ns}/{name}/lineage")
def get_lineage(ns: str, name: str, services: AppServices, principal: Reader) -> Lineage:
    """The ingredients of an adapter, the soups made from it, and the evidence of its cooks."""
    return lineage_of(services, principal.namespaces, adapter_named(services, principal, ns, name))


# --- files ----------------------------------------------------------------------------------------


@router.get("/{ns}/{name}/files")
def list_files(ns: str, name: str, services: AppServices, principal: Reader) -> FileList:
    """The files of an adapter directory."""
    files = files_of(adapter_named(services, principal, ns, name), services).values()
    return FileList(data=[StoredFile(name=file.name, size=file.size, digest=file.digest) for file in files])


@router.head("/{ns}/{name}/files/{file}", response_class=Response, include_in_schema=False)
@router.get("/{ns}/{name}/files/{file}", response_class=Response, responses=FILE_BYTES)
def get_file(request: Request, ns: str, name: str, file: str, services: AppServices, principal: Reader) -> Response:
    """One file of an adapter directory; supports ETag and a single Range."""
    row = adapter_named(services, principal, ns, name)
    files = files_of(row, services)
    if file not in files:
        raise NotFound(f"{row.ref} has no such file; it has {', '.join(files)}.", param="file")
    stored = files[file]
    return store_redirect(request, services, stored, etag=stored.digest) or ranged(
        request,
        digest=stored.digest,
        size=stored.size_for(request.method),
        open=stored.open,
        filename=file,
        cache=REVALIDATE,
    )


# --- aliases --------------------------------------------------------------------------------------


@router.get("/{ns}/{name}/aliases")
def list_aliases(ns: str, name: str, services: AppServices, principal: Reader) -> AliasList:
    """All aliases of a name."""
    adapter = adapter_named(services, principal, ns, name)
    with services.registry.database.read() as catalogue:
        rows = catalogue.aliases.list(adapter.namespace, adapter.name)
    return AliasList(data=[_alias(row) for row in rows])


@router.put("/{ns}/{name}/aliases/{alias}")
def put_alias(
    ns: str,
    name: str,
    alias: str,
    body: AliasBody,
    services: AppServices,
    principal: Writer,
    if_match: IfMatch,
) -> Alias:
    """Point an alias at a version; with If-Match only if the alias has not changed since the caller read it."""
    target = NameRef(namespace=ns, name=name, version=body.version)
    row = changes.put_alias(
        services.registry,
        principal.caller,
        target,
        check_alias(alias),
        if_match=if_match,
        is_admin=principal.has("admin"),
    )
    return _alias(row)


@router.delete("/{ns}/{name}/aliases/{alias}", status_code=204, response_class=Response)
def delete_alias(
    ns: str, name: str, alias: str, services: AppServices, principal: Writer, if_match: IfMatch
) -> Response:
    """Remove an alias."""
    principal.check_visible(ns)
    changes.delete_alias(
        services.registry,
        principal.caller,
        ns,
        name,
        alias,
        if_match=if_match,
        is_admin=principal.has("admin"),
    )
    return Response(status_code=204)


def _alias(row: AliasRow) -> Alias:
    return Alias(alias=row.alias, version=row.version, ref=f"{row.namespace}/{row.name}@{row.version}", etag=row.etag)


@router.post("/{ns}/{name}/purge")
def purge_adapter(ns: str, name: str, services: AppServices, principal: Admin) -> Purged:
    """Permanently delete a version, `name@version`: its row, evidence, weights and sample, unless others need them.

    This cannot be undone. Soups made from it remain and are served, but cannot be rebuilt. The answer names them, and
    the soups and adapters that have learnt from its sample.
    """
    row = _any_version(services, principal, ns, name, verb="purge")
    report = purge(services.registry, principal.caller, row.id)
    services.jobs.wake()
    soups = [row.ref for row in report.not_rebuildable if principal.sees(row.namespace)]
    tuned = [row.ref for row in report.tuned if principal.sees(row.namespace)]
    return Purged(
        adapter=listed_body(report.row),
        blobs=report.blobs,
        bytes=report.bytes,
        not_rebuildable=soups,
        tuned_on_sample=tuned,
        elsewhere=len(report.not_rebuildable) + len(report.tuned) - len(soups) - len(tuned),
    )
