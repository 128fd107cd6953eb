"""Bodies of `/healthz` and `/readyz`."""

from __future__ import annotations

from typing import Literal

from service.http.schemas.wire import Wire


class Alive(Wire):
    """The answer while the process runs."""

    status: Literal["ok"] = "ok"


class Ready(Wire):
    """True if the database and the blobs can be used, and every base model in memory computed a token."""

    status: Literal["ready", "not_ready"]
    checks: dict[str, str]
    """The state of each, by name: 'ok', or a problem. Some states of a base model do not make the server unready:
    'loads at its next use' (not in memory now), 'exceeds the memory budget', 'is busy' with other requests, and 'has no
    replica on Ray that answers'."""
