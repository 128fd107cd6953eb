"""`soup replicas`: the servers that share a database. Needs a key with scope admin and all namespaces."""

from __future__ import annotations

from service.cli.output import columns, data_width
from service.cli.remote import Remote, verb


@verb
def replicas(remote: Remote) -> None:
    """List the servers that share the database.

    One that has missed two beats is out: routers send it nothing, and after an hour it is no longer listed.

    \b
    Examples:
      soup replicas
      soup replicas --json
    """
    found = remote.client.replicas()
    rows = [
        (
            one["id"], one["role"], one["url"] or "-", "there" if one["alive"] else "out",
            f"{one['silent_seconds']:.1f}", one["requests"], one["places"], one["adapters"],
            ", ".join(f"{base}={fingerprint[7:19]}" for base, fingerprint in sorted(one["bases"].items())) or "-",
        )
        for one in found
    ]  # fmt: skip
    header = ("replica", "role", "url", "state", "silent s", "requests", "places", "adapters", "bases")
    table = [columns(header, rows, within=data_width())] if rows else []
    said = "" if rows else "No server is listed: those on SQLite are alone."
    remote.answer({"object": "list", "data": found}, *table, said=said)
