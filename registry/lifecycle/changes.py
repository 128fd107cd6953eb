"""The verbs that change a stored adapter: its card, domain and owner, its retirement, and its aliases.

Called by the adapters' routes, which have checked that the caller may write. Each change and its audit entry is one
transaction. Pools of a changed adapter are fitted again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Any

from registry.catalogue import Catalogue
from registry.catalogue.repository import now
from registry.catalogue.rows import AdapterRow, AliasRow, Etags
from registry.catalogue.usage import UsageKey, UsageSum
from registry.context import Caller, Registry
from registry.errors import Forbidden
from registry.names import NameRef
from registry.quotas import check_stored
from registry.select.pools import enqueue_refits


def change(
    registry: Registry, caller: Caller, adapter_id: int, changes: Mapping[str, Any], *, if_match: Etags
) -> AdapterRow:
    """Change the card or domain of a version, or the owner of all versions of its name, as `changes` has them.

    Raises PreconditionFailed if `if_match` has not the version's etag.
    """
    owner = {"owner": changes["owner"] or ""} if "owner" in changes else {}
    with registry.database.write() as catalogue:
        row = catalogue.adapters.update_card(
            adapter_id, card=changes.get("card"), domain=changes.get("domain"), if_match=if_match
        )
        if owner:
            row = catalogue.adapters.set_owner(row, changes["owner"])
        if changes.keys() != owner.keys():
            enqueue_refits(catalogue, row, created_by=caller.key_id, refits=registry.refits)
        caller.audit(catalogue, "adapter.change", row.ref, digest=row.digest, **owner)
    return row


def retire(registry: Registry, caller: Caller, ref: NameRef, *, is_admin: bool) -> list[AdapterRow]:
    """Retire the version that `ref` names, or without a version and an alias every live version of the name.

    Raises Forbidden if a protected alias points at one of them, unless the caller `is_admin`.
    """
    with registry.database.write() as catalogue:
        named = catalogue.adapters.resolve(caller.namespaces, ref)
        is_single = ref.version is not None or ref.alias is not None
        live = [named] if is_single else catalogue.adapters.live_versions(ref.namespace, ref.name)
        if not is_admin:
            _check_protected(catalogue, ref.namespace, ref.name, versions={row.version for row in live})
        rows = [catalogue.adapters.retire(row.id) for row in live]
        _after_change(registry, caller, catalogue, "adapter.retire", rows)
    return rows


def restore(registry: Registry, caller: Caller, adapter_id: int, *, if_match: Etags) -> AdapterRow:
    """Restore a retired version; a live one does not change. Raises QuotaExceeded and PreconditionFailed.

    Counts as a use without a request, or the next collection would retire an unnamed soup again.
    """
    with registry.database.write() as catalogue:
        was_retired = catalogue.adapters.get(adapter_id).retired_at is not None
        row = catalogue.adapters.restore(adapter_id, if_match=if_match)
        if was_retired:
            namespaces = [row.namespace]
            check_stored(catalogue, registry.quotas, "adapters", key_id=row.created_by, namespaces=namespaces)
            used = UsageKey(now().date().isoformat(), caller.key_id, row.namespace, row.ref)
            catalogue.usage.add({used: UsageSum()})
            _after_change(registry, caller, catalogue, "adapter.restore", [row])
    return row


def put_alias(
    registry: Registry, caller: Caller, target: NameRef, alias: str, *, if_match: Etags, is_admin: bool
) -> AliasRow:
    """Point an alias at a version of its name. Raises as `delete_alias`, NotFound, Retired."""
    with registry.database.write() as catalogue:
        row = catalogue.adapters.resolve(caller.namespaces, target)
        if not is_admin:
            _check_protected(catalogue, row.namespace, row.name, alias=alias)
        pointing = catalogue.aliases.put(row.namespace, row.name, alias, row.version, if_match=if_match)
        caller.audit(catalogue, "alias.put", f"{row.namespace}/{row.name}@{alias}", target=row.ref)
    return pointing


def delete_alias(
    registry: Registry, caller: Caller, ns: str, name: str, alias: str, *, if_match: Etags, is_admin: bool
) -> None:
    """Remove an alias. Raises Forbidden for a protected one unless the caller `is_admin`, and PreconditionFailed."""
    with registry.database.write() as catalogue:
        if not is_admin:
            _check_protected(catalogue, ns, name, alias=alias)
        catalogue.aliases.delete(ns, name, alias, if_match=if_match)
        caller.audit(catalogue, "alias.delete", f"{ns}/{name}@{alias}", target="")


def _after_change(
    registry: Registry, caller: Caller, catalogue: Catalogue, action: str, rows: Sequence[AdapterRow]
) -> None:
    for row in rows:
        enqueue_refits(catalogue, row, created_by=caller.key_id, refits=registry.refits)
        caller.audit(catalogue, action, row.ref, digest=row.digest)


def _check_protected(
    catalogue: Catalogue, ns: str, name: str, *, alias: str = "", versions: Set[int] = frozenset()
) -> None:
    """Raise Forbidden if `alias`, or an alias that points at one of `versions`, is protected in the namespace."""
    protected = catalogue.namespaces.get(ns).protected_aliases
    if alias in protected:
        raise Forbidden(f"The alias {alias!r} is protected in namespace {ns!r}: only an admin moves it.", param="alias")
    for guard in protected:
        row = catalogue.aliases.get(ns, name, guard)
        if row is not None and row.version in versions:
            raise Forbidden(
                f"The protected alias {guard!r} points at {ns}/{name}@{row.version}: only an admin can retire it.",
                param="name",
            )
