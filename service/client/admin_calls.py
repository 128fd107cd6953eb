"""What a client asks of keys, the audit, namespaces, limits, usage and health."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from registry.errors import InvalidParameter
from registry.names import KeyScope
from service.client.adapter_calls import matching
from service.client.answers import part
from service.client.steps import Json, Listing, Steps, json_of, listing, send


def create_key(
    name: str,
    *,
    scopes: Sequence[KeyScope],
    namespaces: Sequence[str] | None = None,
    expires_at: datetime | None = None,
) -> Steps[Json]:
    """Make a key; `secret` is in this answer and nowhere else. `namespaces` None sees all of them.

    `expires_at` knows its time zone; None never expires.
    """
    body: Json = {"name": name, "scopes": list(scopes)}
    body["namespaces"] = None if namespaces is None else list(namespaces)
    if expires_at is not None:
        body["expires_at"] = expires_at.isoformat()
    return (yield from json_of("POST", "/v1/keys", json=body, repeat=False))


def keys(*, limit: int | None = None) -> Listing[Json]:
    """Keys, oldest first, without secrets: all, or the first `limit` of them."""
    return listing("/v1/keys", {}, limit)


def change_key(key_id: str, **changes: str | Sequence[str] | datetime | None) -> Steps[Json]:
    """Change a key: name, scopes, namespaces (None: all), expires_at (None: never); what is not named stays."""
    body = {name: one.isoformat() if isinstance(one, datetime) else one for name, one in changes.items()}
    return (yield from json_of("PATCH", f"/v1/keys/{part(key_id)}", json=body))


def rotate_key(key_id: str, *, grace_seconds: int = 0) -> Steps[Json]:
    """Give a key another `secret`, which is in this answer and nowhere else; what it had ends after the grace."""
    body = {"grace_seconds": grace_seconds}
    return (yield from json_of("POST", f"/v1/keys/{part(key_id)}/rotate", json=body, repeat=False))


def revoke_key(key_id: str) -> Steps[Json]:
    """Revoke a key, from the next request on."""
    return (yield from json_of("DELETE", f"/v1/keys/{part(key_id)}"))


def audit(
    *, since: datetime | None = None, until: datetime | None = None, limit: int | None = None, **filters: str | None
) -> Listing[Json]:
    """Who did what, newest first; filters action, subject, namespace and key_id. Moments know their time zone."""
    return listing("/v1/audit", {**filters, **_moments(since, until)}, limit)


def audit_csv(*, since: datetime | None = None, until: datetime | None = None, **filters: str | None) -> Steps[str]:
    """All of the same as CSV."""
    params = {**filters, **_moments(since, until), "format": "csv"}
    return (yield from send("GET", "/v1/audit", params=params)).text


def namespace(namespace: str) -> Steps[Json]:
    """The settings of a namespace, and their etag."""
    return (yield from json_of("GET", f"/v1/namespaces/{part(namespace)}"))


def change_namespace(
    namespace: str, *, if_match: str | None = None, **settings: str | int | list[str] | None
) -> Steps[Json]:
    """Change settings of a namespace: tuning, protected_aliases, unnamed_soup_days; what is not named stays.

    With `if_match` (an etag) only if nobody else has changed them meanwhile.
    """
    path = f"/v1/namespaces/{part(namespace)}"
    return (yield from json_of("PATCH", path, json=settings, headers=matching(if_match)))


def limits(*, key_id: str | None = None, namespace: str | None = None) -> Steps[Json]:
    """The limits of a key (by its id) or of a namespace, those in force, and what is in use of its quotas."""
    return (yield from json_of("GET", _limits_path(key_id, namespace)))


def change_limits(*, key_id: str | None = None, namespace: str | None = None, **limits: int | None) -> Steps[Json]:
    """Change limits: requests_per_minute, tokens_per_minute, stored_bytes, adapters, jobs.

    None leaves one to the server's default; what is not named stays.
    """
    return (yield from json_of("PATCH", _limits_path(key_id, namespace), json=limits))


def usage(*, by: Sequence[str] = (), limit: int | None = None, **filters: str | None) -> Listing[Json]:
    """Requests and tokens by day, key, namespace and model, or `by` some of these; last day first.

    Filters are since and until (days: 2030-01-31), key_id, namespace and model.
    """
    return listing("/v1/usage", {**filters, "by": by or None}, limit)


def usage_csv(*, by: Sequence[str] = (), **filters: str | None) -> Steps[str]:
    """All of the same as CSV."""
    params = {**filters, "by": by or None, "format": "csv"}
    return (yield from send("GET", "/v1/usage", params=params)).text


def ready() -> Steps[Json]:
    """What /readyz says; raises Unavailable while the server is not ready."""
    return (yield from json_of("GET", "/readyz"))


def _moments(since: datetime | None, until: datetime | None) -> dict[str, str | None]:
    return {
        "since": None if since is None else since.isoformat(), "until": None if until is None else until.isoformat()
    }  # fmt: skip


def _limits_path(key_id: str | None, namespace: str | None) -> str:
    if key_id is not None and namespace is None:
        return f"/v1/keys/{part(key_id)}/limits"
    if namespace is not None and key_id is None:
        return f"/v1/namespaces/{part(namespace)}/limits"
    raise InvalidParameter("Limits are those of a key or of a namespace: name one of them.", param="namespace")
