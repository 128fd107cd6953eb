"""Many threads and processes on one database, and processes that are killed: nothing is lost, doubled or half there."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from collections import Counter
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from registry.blobs import LocalBlobs
from registry.catalogue import Database
from registry.errors import PreconditionFailed
from registry.names import sha256_digest
from tests.registry.catalogue_rows import add_to
from tests.registry.together import together
from tests.repository import REPOSITORY

# --- threads --------------------------------------------------------------------------------------


def test_no_change_of_an_alias_is_lost(database):
    """Each thread adds one to the version it read; whoever was overtaken reads again."""
    with database.write() as catalogue:
        catalogue.aliases.put("acme", "law", "stable", 0)
    overtaken = Counter()

    def increase(index: int) -> None:
        for _ in range(4):
            while True:
                with database.read() as catalogue:
                    row = catalogue.aliases.get("acme", "law", "stable")
                try:
                    with database.write() as catalogue:
                        catalogue.aliases.put("acme", "law", "stable", row.version + 1, if_match=frozenset({row.etag}))
                    break
                except PreconditionFailed:
                    overtaken[index] += 1

    together(6, increase)
    with database.read() as catalogue:
        assert catalogue.aliases.get("acme", "law", "stable").version == 24


def test_each_job_is_claimed_once_while_more_come(database):
    claimed: list[str] = []

    def work(index: int) -> None:
        for number in range(5):
            with database.write() as catalogue:
                catalogue.jobs.enqueue("embed", {"n": [index, number]}, namespace="acme", created_by="k")
            with database.write() as catalogue:
                later = datetime.now(UTC) + timedelta(seconds=5)
                claimed.append(catalogue.jobs.claim(f"w{index}", ["embed"], 60, later).id)

    together(8, work)
    assert len(set(claimed)) == 40


def test_one_job_for_one_dedupe_key(database):
    def enqueue(_: int) -> str:
        with database.write() as catalogue:
            return catalogue.jobs.enqueue("fit", {}, namespace="acme", created_by="k", dedupe_key="pool").id

    assert len(set(together(8, enqueue))) == 1


def test_each_version_is_given_once_to_more_threads_than_connections(databases, tmp_path):
    with databases.new(tmp_path / "small", pool_size=2) as database:

        def push(index: int) -> None:
            for number in range(4):
                row = add_to(database, digest=f"{index}-{number}")
                with database.read() as catalogue:
                    assert catalogue.adapters.get(row.id) == row

        together(8, push)
        with database.read() as catalogue:
            versions = [row.version for row in catalogue.adapters.live_versions("acme", "law")]
        assert versions == list(range(32, 0, -1))


# --- processes ------------------------------------------------------------------------------------

PRELUDE = """
import itertools, json, sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
import migrations
from registry.blobs import LocalBlobs
from registry.catalogue import Database
from tests.registry.catalogue_rows import add, new_adapter

folder = Path(sys.argv[1])
database = Database(sys.argv[3])
def say(*words):
    print(json.dumps(words), flush=True)
"""
OPEN_AND_PUSH = """
migrations.upgrade(database.engine)
for number in range(10):
    with database.write() as catalogue:
        row = add(catalogue, digest=f"{sys.argv[2]}-{number}")
        job = catalogue.jobs.claim(sys.argv[2], ["embed"], 60, datetime.now(UTC) + timedelta(seconds=5))
        catalogue.jobs.enqueue("embed", {"adapter_id": row.id}, namespace="acme", created_by="k")
    say(row.version, job and job.id)
"""
PUSH_FOR_EVER = """
store = LocalBlobs(folder / "blobs")
for number in itertools.count():
    data = f"{sys.argv[2]} {number} ".encode() * 2000
    blob = store.put_bytes(data)
    with database.write() as catalogue:
        catalogue.blobs.record(blob, len(data))
        row = catalogue.adapters.add(new_adapter(digest=str(number), weights_blob=blob))
        catalogue.jobs.enqueue("embed", {"adapter_id": row.id}, namespace="acme", created_by="k")
        catalogue.audit.record("push", row.ref, key_id=None, request_id=None, detail={})
    say(row.id, blob)
"""


def start(script: str, folder: Path, name: str, url: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PRELUDE + script, str(folder), name, url],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )


# --- processes ------------------------------------------------------------------------------------


@pytest.mark.slow
def test_processes_that_open_migrate_and_write_one_new_database_at_once(databases, tmp_path):
    with databases.url(tmp_path, empty=True) as url:
        children = [start(OPEN_AND_PUSH, tmp_path, f"p{number}", url) for number in range(2)]
        pushes = [json.loads(line) for child in children for line in child.communicate()[0].splitlines()]
    assert [child.returncode for child in children] == [0, 0]
    assert sorted(version for version, _ in pushes) == list(range(1, 21))
    claimed = [job for _, job in pushes if job is not None]
    assert len(claimed) == len(set(claimed)) == 19  # all but the first found the job of the push before


@pytest.mark.slow
def test_kill_9_during_a_write(databases, tmp_path):
    """Rows come with their job, audit entry and bytes, or not at all; what was acknowledged is there."""
    acknowledged: dict[int, str] = {}
    with databases.url(tmp_path) as url:
        for life in range(2):
            child = start(PUSH_FOR_EVER, tmp_path, f"life-{life}", url)
            lines = [child.stdout.readline() for _ in range(3 + 10 * life)]
            child.kill()
            lines += child.stdout.read().splitlines(keepends=True)
            child.stdout.close()
            child.wait()
            acknowledged |= dict(json.loads(line) for line in lines if line.endswith("]\n"))
            if databases.kind == "sqlite":
                with closing(sqlite3.connect(tmp_path / "soup.db")) as raw:
                    assert raw.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
                    assert raw.execute("PRAGMA foreign_key_check").fetchall() == []
            database = Database(url)
            check(tmp_path, database, acknowledged)
            database.close()


def check(folder: Path, database: Database, acknowledged: dict[int, str]) -> None:
    with database.read() as catalogue:
        rows = {row.id: row for row in catalogue.adapters.live_versions("acme", "law")}
        jobs = catalogue.jobs.list(None, limit=10_000).rows
        entries = catalogue.audit.list(None, limit=10_000).rows
    assert acknowledged.items() <= {id: row.weights_blob for id, row in rows.items()}.items()
    assert {job.arguments["adapter_id"] for job in jobs} == set(rows)
    assert {entry.subject for entry in entries} == {row.ref for row in rows.values()}
    assert sorted(row.version for row in rows.values()) == list(range(1, len(rows) + 1))
    store = LocalBlobs(folder / "blobs")
    assert all(sha256_digest(store.read(row.weights_blob)) == row.weights_blob for row in rows.values())
    assert add_to(database, "acme/after").version >= 1
