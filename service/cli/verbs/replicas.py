"""`soup replicas`: the servers that share a database. Needs a key with scope admin and all namespaces."""

from __future__ import annotations

from collections import Counter

from service.cli.output import columns, data_width
from service.cli.remote import Remote, verb
from service.client.steps import Json


@verb
def replicas(remote: Remote) -> None:
    """List the servers that share the database.

    One that has missed two beats is out: routers send it nothing, and after an hour it is no longer listed. The version
    of each has the revision of the schema beside it that it is made for; older servers say none.

    \b
    Examples:
      soup replicas
      soup replicas --json
    """
    found = remote.client.replicas()
    rows = [
        (
            one["id"], _version(one), one["role"], one["url"] or "-", "there" if one["alive"] else "out",
            f"{one['silent_seconds']:.1f}", one["requests"], one["places"], one["adapters"],
            ", ".join(f"{base}={fingerprint[7:19]}" for base, fingerprint in sorted(one["bases"].items())) or "-",
        )
        for one in found
    ]  # fmt: skip
    header = ("replica", "version", "role", "url", "state", "silent s", "requests", "places", "adapters", "bases")
    table = [columns(header, rows, within=data_width())] if rows else []
    said = "" if rows else "No server is listed: those on SQLite are alone."
    versions = Counter(_version(one) for one in found if one["alive"])
    if len(versions) > 1:
        said = "Servers by version: " + ", ".join(f"{one} {count}" for one, count in versions.items()) + "."
    remote.answer({"object": "list", "data": found}, *table, said=said)


def _version(one: Json) -> str:
    """As it stands in the list; neither an older server nor the list of one has it."""
    version = one.get("version")
    return f"{version} ({one['revision']})" if version else "not said"
