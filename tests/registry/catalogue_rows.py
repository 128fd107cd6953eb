"""An empty database, and rows without a story, for the tests of the catalogue."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import event

from registry.catalogue import Catalogue, Database
from registry.catalogue.rows import AdapterRow, MemberRow, NewAdapter
from registry.names import sha256_digest
from registry.spec import BottleneckConfig, Card, PoolSpec, Provenance, SampleReport
from tests.postgres import migrated_file

BASE = sha256_digest(b"base")
CONFIG = BottleneckConfig(structure="pfeiffer", bottleneck=4, activation="relu")


def new_database(folder: Path, **options: Any) -> Database:
    """A database with every table, in a file of `folder`: the one that is there, or a new one."""
    file = folder / "soup.db"
    if not file.exists():
        file.write_bytes(migrated_file())
    return Database(f"sqlite:///{file}", **options)


@contextmanager
def undone(database: Database) -> Iterator[Catalogue]:
    """A write transaction that is rolled back, so that each example of a law starts from nothing."""
    with database.engine.connect().execution_options(soup_mode="write") as connection, connection.begin() as all_of_it:
        yield Catalogue(connection)
        all_of_it.rollback()


@contextmanager
def statements(database: Database) -> Iterator[list[str]]:
    """Collect the statements that reach the database meanwhile."""
    texts: list[str] = []

    def listen(connection: Any, cursor: Any, statement: str, *rest: Any) -> None:
        texts.append(statement)

    event.listen(database.engine, "before_cursor_execute", listen)
    yield texts
    event.remove(database.engine, "before_cursor_execute", listen)


def sample_of(text: str, **fields: Any) -> SampleReport:
    return SampleReport(digest=sha256_digest(text.encode()), received=20, kept=20, **fields)


def new_adapter(name: str = "acme/law", *, digest: str = "", tags: tuple[str, ...] = (), **fields: Any) -> NewAdapter:
    """An adapter about to be stored; `digest` is hashed, so that any word will do."""
    namespace, _, bare = name.partition("/")
    values: dict[str, Any] = {
        "namespace": namespace,
        "name": bare,
        "kind": "adapter",
        "digest": sha256_digest((digest or name).encode()),
        "base_model": "tiny",
        "base_fingerprint": BASE,
        "config": CONFIG,
        "domain": bare,
        "card": Card(tags=tags, description=fields.pop("description", "")),
        "provenance": Provenance(),
        "weights_blob": sha256_digest(b"weights of " + (digest or name).encode()),
        "dtype": "F32",
        "parameters": 10,
        "size_bytes": 40,
        "sample": None,
        "sample_state": "none",
        "recipe_digest": None,
        "tuned_on": None,
        "created_by": "key-1",
    }
    return NewAdapter(**{**values, **fields})


def add(catalogue: Catalogue, name: str = "acme/law", **fields: Any) -> AdapterRow:
    """A stored adapter, its blob included."""
    new = new_adapter(name, **fields)
    catalogue.blobs.record(new.weights_blob, new.size_bytes)
    return catalogue.adapters.add(new)


def add_to(database: Database, name: str = "acme/law", **fields: Any) -> AdapterRow:
    """An adapter stored in a transaction of its own."""
    with database.write() as catalogue:
        return add(catalogue, name, **fields)


def add_ready(catalogue: Catalogue, name: str, **fields: Any) -> AdapterRow:
    """A stored adapter whose sample is embedded."""
    return add(catalogue, name, sample=sample_of(name), sample_state="ready", **fields)


def member_of(row: AdapterRow) -> MemberRow:
    return MemberRow(adapter_id=row.id, ref=row.ref, digest=row.digest, domain=row.domain)


def pool_of(*namespaces: str, **fields: Any) -> PoolSpec:
    """A pool over these namespaces; over all where none is named."""
    return PoolSpec(base_fingerprint=BASE, namespaces=namespaces or None, **fields)
