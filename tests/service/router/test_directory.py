"""What a router looks up, as which key, and for how long it remembers."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import anyio
import pytest

from registry.catalogue import Database
from registry.errors import Busy
from service.hashed_secrets import secret_sha256
from service.oidc.callers import identity_id, tokens_of
from service.router import directory as directory_module
from service.router.directory import KEPT_SECONDS, Asker, Destination, Directory
from service.settings import Settings
from tests.registry.catalogue_rows import add, new_database
from tests.service.little_issuer import little_issuer

SECRET = "sk-soup-" + "d" * 43


class World:
    """A database, and a directory over it whose clock the test moves."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.now = 0.0
        self.directory = Directory(database, threads=2, clock=lambda: self.now)

    def asker(self, header: str) -> Asker | None:
        return anyio.run(self.directory.asker, header)

    def destination(self, asker: Asker, model: str) -> Destination | None:
        return anyio.run(self.directory.destination, asker, model)

    def key(self, secret: str = SECRET, namespaces: tuple[str, ...] | None = ("acme",), **more: object) -> str:
        hashed = hashlib.sha256(secret.encode()).hexdigest()
        with self.database.write() as catalogue:
            row = catalogue.keys.add(
                "k", hashed, namespaces=namespaces, scopes={"infer"}, prefix="p", **more  # type: ignore[arg-type]
            )  # fmt: skip
        return row.id

    def revoke(self, id: str) -> None:
        with self.database.engine.begin() as connection:
            connection.exec_driver_sql("UPDATE keys SET revoked_at = 1 WHERE id = ?", (id,))


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    database = new_database(tmp_path)
    world = World(database)
    yield world
    world.directory.close()
    database.close()


def test_a_key_is_known_while_it_is_one(world: World) -> None:
    id_ = world.key()
    assert world.asker(f"Bearer {SECRET}") == Asker(id_, ("acme",))
    assert world.asker(f"bearer  {SECRET} ") == Asker(id_, ("acme",))
    world.revoke(id_)
    world.now += KEPT_SECONDS
    assert world.asker(f"Bearer {SECRET}") is None


@pytest.mark.parametrize("header", ["", "Bearer", "Basic YTpi", f"Basic {SECRET}", "Bearer nobody", "Bearer \udcff"])
def test_anything_else_is_nobody(world: World, header: str) -> None:
    world.key()
    assert world.asker(header) is None


def test_an_expired_key_is_nobody_and_a_replaced_secret_is_one_for_its_grace(world: World) -> None:
    moment = datetime.now(UTC)
    world.key(SECRET, expires_at=moment - timedelta(seconds=1))
    assert world.asker(f"Bearer {SECRET}") is None
    id_ = world.key("sk-soup-new")
    for secret, ends_at in (("grace", moment + timedelta(hours=1)), ("over", moment - timedelta(hours=1))):
        hashed = hashlib.sha256(secret.encode()).hexdigest()
        microseconds = int(ends_at.timestamp() * 1e6)
        with world.database.engine.begin() as connection:
            connection.exec_driver_sql("INSERT INTO former_secrets VALUES (?, ?, ?)", (hashed, id_, microseconds))
    assert world.asker("Bearer grace") == Asker(id_, ("acme",))
    assert world.asker("Bearer over") is None


def test_a_token_is_somebody_where_its_issuer_is_known_and_says_so(world: World, tmp_path: Path) -> None:
    with little_issuer() as issuer:
        assert world.asker(f"Bearer {issuer.token('law-team')}") is None
        settings = Settings(data=tmp_path, **issuer.settings(tmp_path))
        world.directory.close()
        world.directory = Directory(world.database, threads=2, issuer=tokens_of(settings), clock=lambda: world.now)
        id_ = identity_id(issuer.url, "u-1")
        assert world.asker(f"Bearer {issuer.token('law-team')}") == Asker(id_, ("law",))
        admin = issuer.token("soup-admins", sub="u-2")
        assert world.asker(f"Bearer {admin}") == Asker(identity_id(issuer.url, "u-2"), None, True)
        for wrong in (issuer.token("strangers"), issuer.token("law-team", exp=1), admin[:-8] + "AAAAAAAA", "a.b.c"):
            assert world.asker(f"Bearer {wrong}") is None
        with world.database.write() as catalogue:
            assert catalogue.keys.identity(id_) is None, "its row is made by the server"
            catalogue.keys.add_identity(
                id_, issuer=issuer.url, subject="u-1", name="ada", namespaces=("law",), scopes=frozenset({"infer"})
            )
        world.revoke(id_)
        world.now += KEPT_SECONDS
        assert world.asker(f"Bearer {issuer.token('law-team')}") is None


def test_a_session_is_its_keys_while_that_is_one(world: World) -> None:
    id_ = world.key()
    with world.database.write() as catalogue:
        catalogue.sessions.add(
            secret_sha256("held"), secret_sha256=hashlib.sha256(SECRET.encode()).hexdigest(), key_id=id_,
            expires_at=datetime.now(UTC) + timedelta(hours=1), most=1,
        )  # fmt: skip
    assert anyio.run(world.directory.session, "held") == Asker(id_, ("acme",))
    assert anyio.run(world.directory.session, "made up") is None
    world.revoke(id_)
    world.now += KEPT_SECONDS
    assert anyio.run(world.directory.session, "held") is None


def test_a_name_is_what_it_is_to_whoever_asks(world: World) -> None:
    with world.database.write() as catalogue:
        row = add(catalogue, "acme/law")
    ours, foreign = Asker("a", ("acme",)), Asker("b", ("other",))
    found = Destination("tiny", row.digest)
    for model in ("acme/law", "acme/law@1", row.digest):
        assert world.destination(ours, model) == found
        assert world.destination(foreign, model) is None, "as of one that does not exist"
    assert world.destination(ours, "acme/none") is None
    for base in ("tiny", "base/tiny", "auto"):
        assert world.destination(foreign, base) in (Destination("tiny", None), Destination("auto", None))
    for odd in ("", "/", "acme/", "a/b/c", "sha256:1", "../etc", "acme/law@", "\x00"):
        assert world.destination(ours, odd) is None


def test_what_was_found_is_asked_again_soon(world: World) -> None:
    asker = Asker("a", None)
    with world.database.write() as catalogue:
        first = add(catalogue, "acme/law", digest="one")
    assert world.destination(asker, "acme/law") == Destination("tiny", first.digest)
    with world.database.write() as catalogue:
        second = add(catalogue, "acme/law", digest="two")
    world.now += KEPT_SECONDS * 0.9
    assert world.destination(asker, "acme/law") == Destination("tiny", first.digest)
    world.now += KEPT_SECONDS * 0.2
    assert world.destination(asker, "acme/law") == Destination("tiny", second.digest)
    assert KEPT_SECONDS < 1


def test_a_row_that_is_retired_is_nowhere(world: World) -> None:
    with world.database.write() as catalogue:
        row = add(catalogue, "acme/law")
        catalogue.adapters.retire(row.id)
    assert world.destination(Asker("a", None), "acme/law") is None


async def ask_at_once(world: World, count: int = 10) -> list[Destination | str | None]:
    """What each of so many that ask for the same is answered."""
    answers: list[Destination | str | None] = []

    async def ask() -> None:
        try:
            answers.append(await world.directory.destination(Asker("a", None), "acme/law"))
        except Busy:
            answers.append("busy")

    async with anyio.create_task_group() as tasks:
        for _ in range(count):
            tasks.start_soon(ask)
    return answers


def test_of_many_that_ask_at_once_one_looks_for_all(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where it does not find it: the others would only wait one after the other for the same."""
    looked: list[str] = []
    find = world.directory._find

    def counted(visible: object, model: str) -> Destination | None:
        looked.append(model)
        if len(looked) == 1:
            raise Busy("The first does not find it.", retry_after=1)
        world.now += KEPT_SECONDS  # so long it took
        return find(visible, model)  # type: ignore[arg-type]

    monkeypatch.setattr(world.directory, "_find", counted)
    with world.database.write() as catalogue:
        row = add(catalogue, "acme/law")
    assert anyio.run(ask_at_once, world) == ["busy"] * 10
    assert len(looked) == 1
    assert anyio.run(ask_at_once, world) == [Destination("tiny", row.digest)] * 10
    assert len(looked) == 2
    assert anyio.run(ask_at_once, world) == [Destination("tiny", row.digest)] * 10
    assert len(looked) == 2, "what a slow look found is as new as its end"


def test_nobody_waits_for_a_database_that_hangs(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = threading.Event()
    monkeypatch.setattr(directory_module, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(directory_module, "MOST_LOOKS", 1)
    monkeypatch.setattr(world.directory, "_find", lambda *_: go_on.wait(60) and None)

    async def ask() -> None:
        assert await ask_at_once(world, 3) == ["busy"] * 3
        with pytest.raises(Busy, match="1 lookups wait"):
            await world.directory.destination(Asker("a", None), "acme/other")
        go_on.set()

    anyio.run(ask)
