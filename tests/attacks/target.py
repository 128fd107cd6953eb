"""The server that is attacked: what it holds beforehand, who attacks it, and everything an attack might change."""

from __future__ import annotations

import base64
import hashlib
import json
import socket
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import Table, select

from registry.catalogue.tables import metadata
from tests.attacks.attack import Attack, Outcome
from tests.attacks.watched import watched
from tests.service.cluster import until
from tests.service.servers import BASE_ID, CONFIG, Live, World, adapter_weights
from tests.service.sockets import until_closed

WEIGHTS = "adapter_model.safetensors"
PASSAGES = [f"passage number {number}" for number in range(30)]
UNCOUNTED = frozenset({"audit", "usage"})
"""Tables that grow when a refusal is remembered, which is what they are for."""
LONGEST_SENTENCE = 600
PATIENCE = 60.0
"""Seconds that a socket waits; longer than any answer takes."""


def digest_of(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


def limited(world: World) -> str:
    """The secret of a key that has 1,000 tokens a minute."""
    body = {"name": "limited", "scopes": ["infer"], "namespaces": ["mallory"]}
    key = world.client.post("/v1/keys", json=body).json()
    limits = world.client.patch(f"/v1/keys/{key['id']}/limits", json={"tokens_per_minute": 1000})
    assert limits.status_code == 200, limits.text
    return str(key["secret"])


def ended(world: World, *, revoke: bool) -> str:
    """The secret of a key that works no more: revoked, or expired."""
    key = world.client.post("/v1/keys", json={"name": "ended", "scopes": ["admin"], "namespaces": None}).json()
    if revoke:
        assert world.client.delete(f"/v1/keys/{key['id']}").status_code == 200
    else:
        with world.runtime.database.engine.begin() as connection:
            connection.exec_driver_sql("UPDATE keys SET expires_at = 1 WHERE id = ?", (key["id"],))
    return str(key["secret"])


@dataclass
class Target:
    """A server with an adapter of namespace `acme`, which the attackers may not harm, and a folder to leave alone."""

    world: World
    port: int
    canary: Path
    good: bytes
    victim: dict[str, Any]
    keys: dict[str, str]
    uncounted: frozenset[str] = UNCOUNTED
    """Tables that may change."""
    prepared: Any = None

    @classmethod
    def of(cls, live: Live, canary: Path) -> Target:
        """A new server, stocked with what is attacked and with the attackers' keys."""
        world = live.world
        victim = world.push("acme/law", seed=1, sample={"texts": PASSAGES})
        keys = {
            "reader": world.key(["read"], ["acme"]),
            "stranger": world.key(["read", "write", "infer"], ["mallory"]),
            "limited": limited(world),
            "revoked": ended(world, revoke=True),
            "expired": ended(world, revoke=False),
        }
        port = int(live.url.rpartition(":")[2])
        return cls(world, port, canary, adapter_weights(world.runtime, seed=0), victim, keys)

    # --- ways to attack ---------------------------------------------------------------------------

    def ask(self, method: str, path: str, *, key: str | None = None, **request: Any) -> Outcome:
        """A request with the secret of one of `keys`, by default the admin's."""
        headers = dict(request.pop("headers", {}))
        if key is not None:
            headers |= self.world.headers(self.keys[key])
        answer = self.world.client.request(method, path, headers=headers, **request)
        return Outcome.of(answer.status_code, answer.content)

    def post(self, path: str, body: Any, *, key: str | None = None) -> Outcome:
        """A JSON body; bytes are sent as they are."""
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.ask("POST", path, key=key, content=raw, headers={"content-type": "application/json"})

    def manifest(self, **fields: Any) -> dict[str, Any]:
        """Of a push that would be taken."""
        good = {"base64": base64.b64encode(self.good).decode()}
        return {
            "name": "mallory/bad",
            "domain": "bad",
            "base_model": BASE_ID,
            "config": CONFIG.model_dump(),
            "files": {WEIGHTS: good},
            **fields,
        }

    def push(self, *, key: str | None = None, **fields: Any) -> Outcome:
        """A push that would be taken but for `fields`."""
        return self.post("/v1/adapters", self.manifest(**fields), key=key)

    def push_weights(self, data: bytes) -> Outcome:
        """A push of these weights."""
        return self.push(files={WEIGHTS: {"base64": base64.b64encode(data).decode()}})

    def upload(self, data: bytes, *, key: str | None = None) -> str:
        """The digest of a blob that is uploaded."""
        digest = digest_of(data)
        outcome = self.ask("PUT", f"/v1/blobs/{digest}", key=key, content=data)
        assert outcome.status in {200, 201}, outcome.text
        return digest

    def raw(self, data: bytes) -> bytes:
        """All that comes back on a connection of its own after these bytes, until the server closes it."""
        with closing(socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE)) as connection:
            connection.sendall(data)
            return until_closed(connection)

    # --- what may not change ----------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Every row and every file of the server, and what its requests hold in memory."""
        data = self.world.runtime.settings.data
        files = {str(path): path.stat().st_size for path in data.rglob("*") if path.is_file()}
        with self.world.runtime.database.engine.connect() as connection:
            rows = {
                table.name: sorted(map(repr, connection.execute(select(*columns(table)))))
                for table in metadata.sorted_tables
                if table.name not in self.uncounted
            }
        files_at_rest = {path: size for path, size in files.items() if not Path(path).name.startswith("soup.db")}
        return {**rows, "files": files_at_rest, "held": self.world.app.state.bodies.memory.total}

    def withstands(self, attack: Attack) -> None:
        """Raises AssertionError unless the attack is refused as it says, and nothing is lost, opened or left behind."""
        self.prepared = attack.prepare(self)
        state_before = self.state()
        with watched() as done:
            outcome = attack.strike(self)
        assert (outcome.status, outcome.code) == (attack.status, attack.code), outcome.text[:1000]
        if outcome.code:
            assert outcome.message.endswith((".", ".)")), outcome.message
            assert "\n" not in outcome.message
            assert len(outcome.message) <= LONGEST_SENTENCE
        assert attack.says in outcome.text, outcome.text[:1000]
        assert "Traceback" not in outcome.text
        assert done == []
        with suppress(AssertionError):  # compared below, where the difference is shown
            until(lambda: self.state() == state_before)  # a job deletes its request just after its answer
        assert self.state() == state_before
        whole = self.world.client.get(f"/v1/adapters/acme/law/files/{WEIGHTS}").content
        assert digest_of(whole) == self.victim["weights_blob"]


REMEMBERED = frozenset({("keys", "last_used_at"), ("blobs", "seen_at"), ("upload_sessions", "expires_at")})
"""Columns that remember when something was asked for, whatever was answered."""


def columns(table: Table) -> list[Any]:
    """The columns of a table that no refusal changes."""
    return [column for column in table.columns if (table.name, column.name) not in REMEMBERED]
