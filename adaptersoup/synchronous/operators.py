"""A typed client's calls for operators: keys, audit, namespaces, limits, usage, and models on other servers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime

import httpx2

from adaptersoup.client.answers import drop_none
from adaptersoup.client.paths import (
    if_match_header,
    iso_dates,
    key_path,
    limits_path,
    namespace_path,
)
from adaptersoup.client.synchronous.calls import Calls
from adaptersoup.client.synchronous.connection import ADDRESS, Closing
from adaptersoup.client.waiting import Pause, sleep
from registry.names import KeyScope, check_names
from registry.spec import ServerReadings
from service.http.schemas.activity import AuditEntry, UsageEntry
from service.http.schemas.health import Ready
from service.http.schemas.keys import CreatedKey, Key
from service.http.schemas.namespaces import Limits, Namespace
from service.http.schemas.probes import Diagnosed, Probe
from service.http.schemas.reading import body_of, reader_of
from service.http.schemas.routing import Route


class OperatorCalls(Closing):
    """Calls for operators. `transport` replaces the network, `pause` the waiting between two requests."""

    def __init__(
        self,
        url: str = ADDRESS,
        key: str | None = None,
        *,
        timeout: float = 600.0,
        transport: httpx2.BaseTransport | None = None,
        pause: Pause = sleep,
    ) -> None:
        self._http = Calls(url, key, transport=transport, timeout=timeout, pause=pause)

    def close(self) -> None:
        """Close every connection."""
        self._http.close()

    def create_key(
        self,
        name: str,
        *,
        scopes: Sequence[KeyScope],
        namespaces: Sequence[str] | None = None,
        expires_at: datetime | None = None,
    ) -> CreatedKey:
        """Make a key; only this answer has its `secret`. `namespaces` None grants all.

        `expires_at` needs a time zone; None never expires.
        """
        granted = None if namespaces is None else check_names(namespaces, "namespaces")
        body = {"name": name, "scopes": check_names(scopes, "scopes"), "namespaces": granted}
        body |= iso_dates(drop_none({"expires_at": expires_at}))
        return body_of(CreatedKey, self._http.json("POST", "/v1/keys", json=body, repeat=False))

    def keys(self, *, limit: int | None = None) -> Iterator[Key]:
        """Keys, oldest first, without secrets: all, or the first `limit` of them."""
        return self._http.rows("/v1/keys", {}, limit, reader_of(Key))

    def change_key(self, key_id: str, **changes: str | Sequence[str] | datetime | None) -> Key:
        """Change name, scopes, namespaces (None: all) or expires_at (None: never) of a key; others stay unchanged."""
        return body_of(Key, self._http.json("PATCH", key_path(key_id), json=iso_dates(changes)))

    def rotate_key(self, key_id: str, *, grace_seconds: int = 0) -> CreatedKey:
        """Replace the `secret` of a key, which only this answer has; the old one expires after the grace period."""
        path, body = f"{key_path(key_id)}/rotate", {"grace_seconds": grace_seconds}
        return body_of(CreatedKey, self._http.json("POST", path, json=body, repeat=False))

    def revoke_key(self, key_id: str) -> Key:
        """Revoke a key, from the next request on."""
        return body_of(Key, self._http.json("DELETE", key_path(key_id)))

    def audit(
        self,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        limit: int | None = None,
        **filters: str | None,
    ) -> Iterator[AuditEntry]:
        """Entries of the audit log, newest first; filters are action, subject, namespace and key_id.

        `since` and `until` need a time zone.
        """
        moments = iso_dates({"since": since, "until": until})
        return self._http.rows("/v1/audit", {**filters, **moments}, limit, reader_of(AuditEntry))

    def audit_csv(self, *, since: datetime | None = None, until: datetime | None = None, **filters: str | None) -> str:
        """All entries of the audit log that match, as CSV."""
        return self._http.csv("/v1/audit", {**filters, **iso_dates({"since": since, "until": until})})

    def namespace(self, namespace: str) -> Namespace:
        """The settings of a namespace, and their etag."""
        return body_of(Namespace, self._http.json("GET", namespace_path(namespace)))

    def change_namespace(
        self, namespace: str, *, if_match: str | None = None, **settings: str | int | list[str] | None
    ) -> Namespace:
        """Change settings of a namespace: tuning, protected_aliases, unnamed_soup_days; others stay unchanged.

        With `if_match` (an etag) only if they have not changed since.
        """
        path, headers = namespace_path(namespace), if_match_header(if_match)
        return body_of(Namespace, self._http.json("PATCH", path, json=settings, headers=headers))

    def limits(self, *, key_id: str | None = None, namespace: str | None = None) -> Limits:
        """The limits of a key (by its id) or of a namespace: its own, those in force, and the usage of its quotas."""
        return body_of(Limits, self._http.json("GET", limits_path(key_id, namespace)))

    def change_limits(self, *, key_id: str | None = None, namespace: str | None = None, **limits: int | None) -> Limits:
        """Change limits: requests_per_minute, tokens_per_minute, stored_bytes, adapters, jobs.

        None restores the server's default; others stay unchanged.
        """
        return body_of(Limits, self._http.json("PATCH", limits_path(key_id, namespace), json=limits))

    def usage(self, *, by: Sequence[str] = (), limit: int | None = None, **filters: str | None) -> Iterator[UsageEntry]:
        """Sums of requests and tokens by day, key, namespace and model, or `by` some of these; last day first.

        Filters are since and until (days: 2030-01-31), key_id, namespace and model.
        """
        return self._http.rows("/v1/usage", {**filters, "by": by or None}, limit, reader_of(UsageEntry))

    def usage_csv(self, *, by: Sequence[str] = (), **filters: str | None) -> str:
        """All rows of `usage` that match, as CSV."""
        return self._http.csv("/v1/usage", {**filters, "by": by or None})

    def ready(self) -> Ready:
        """The answer of /readyz; raises Unavailable while the server is not ready."""
        return body_of(Ready, self._http.json("GET", "/readyz"))

    # --- other servers ----------------------------------------------------------------------------------------

    def route(self, texts: Sequence[str]) -> Route:
        """The model that `auto` chooses for a prompt or the user's messages of a chat; nothing is generated."""
        body = {"texts": check_names(texts, "texts")}
        return body_of(Route, self._http.json("POST", "/v1/route", json=body))

    def probe(self, ref: str) -> Probe:
        """The probe of an adapter: what a server of it answers to some short texts.

        Raises InvalidParameter for an adapter that generates no text.
        """
        path = self._http.named_path(ref)
        return body_of(Probe, self._http.json("GET", f"{path}/probe"))

    def diagnose(self, ref: str, readings: ServerReadings) -> Diagnosed:
        """Diagnose what another server answered to the probe of an adapter: whether it is that adapter, or what."""
        path = self._http.named_path(ref)
        body = readings.model_dump(mode="json")
        return body_of(Diagnosed, self._http.json("POST", f"{path}/probe", json=body))
