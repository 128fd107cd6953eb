"""Bodies of `/healthz` and `/readyz`."""

from __future__ import annotations

from typing import Literal

from service.http.schemas.wire import Wire


class Alive(Wire):
    """The process answers."""

    status: Literal["ok"] = "ok"


class Ready(Wire):
    """Whether database and blobs can be used and every base model in memory computed a token."""

    status: Literal["ready", "not_ready"]
    checks: dict[str, str]
    """By name: 'ok', or what is wrong. Nothing is wrong with a base model that 'loads at its next use' (it is not in
    memory now), 'exceeds the memory budget', or 'is busy' with others' requests; nor with the server, where one 'has no
    replica on Ray that answers'."""
