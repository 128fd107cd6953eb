"""`soup backup` and `soup restore` over the data folder of a server that answers pushes meanwhile."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from service.operations.backup_folder import read_manifest
from tests.postgres import KINDS
from tests.registry.damaged_files import flip
from tests.service.servers import Soup, World, open_world, write_bases

DATABASES = KINDS
SETTINGS = {"job_workers": 0, "preload": False}


@pytest.fixture
def backup(world: World, command: Soup, tmp_path: Path) -> Soup:
    """Runs `soup backup` over the server's database and folder, into `tmp_path / "backup"`."""
    settings = world.runtime.settings
    url = [] if settings.database_url is None else ["--database-url", settings.database]
    return lambda *flags: command("backup", tmp_path / "backup", "--data", settings.data, *url, *flags)


def test_a_server_goes_on_and_what_it_acknowledged_is_restored(
    world: World, backup: Soup, command: Soup, tmp_path: Path, tiny_base_dir: Path
) -> None:
    world.push("acme/before", seed=1)
    stop, pushed = threading.Event(), list[str]()

    def push() -> None:
        for number in range(40):
            if stop.is_set():
                return
            world.push(f"acme/during{number}", seed=100 + number)
            pushed.append(f"acme/during{number}")

    pusher = threading.Thread(target=push)
    pusher.start()
    try:
        code, out, err = backup("--json", "--with-admin-key")
    finally:
        stop.set()
        pusher.join()
    assert (code, err) == (0, "")
    told = json.loads(out)
    assert (told["object"], told["unsound"], told["lacking"]) == ("backup", [], [])
    assert told["new"] == told["blobs"] >= 1
    code, _, err = backup()
    assert code == 0
    assert "0 not whole and left out." in err

    bases = write_bases(tmp_path / "bases.toml", {world.base_id: tiny_base_dir})
    code, _, err = command("restore", tmp_path / "backup", "--data", tmp_path / "other")
    assert code == 0, err
    (there,) = open_names(tmp_path / "other", bases)
    assert {"acme/before", *pushed} <= there


def open_names(data: Path, bases: Path) -> list[set[str]]:
    """What a server over a folder lists, by the admin key that it finds there."""
    found = []
    for other in open_world(data, bases, **SETTINGS):
        answer = other.client.get("/v1/adapters", params={"limit": 100})
        assert answer.status_code == 200, answer.text
        found.append({f"{row['namespace']}/{row['name']}" for row in answer.json()["data"]})
    return found


def test_a_damaged_blob_fails_and_is_named(world: World, backup: Soup) -> None:
    digest = world.push("acme/damaged", seed=2)["weights_blob"]
    place = world.runtime.settings.blobs_dir / digest[7:9] / digest[7:]
    flip(place)
    try:
        code, out, err = backup()
        assert code == 1
        assert f"{digest}  damaged  weights of acme/damaged@1" in out
        assert "1 not whole and left out." in err
    finally:
        flip(place)


def test_nothing_is_restored_under_a_server(world: World, backup: Soup, command: Soup, tmp_path: Path) -> None:
    assert backup()[0] == 0
    data = world.runtime.settings.data
    code, _, err = command("restore", tmp_path / "backup", "--data", data, "--replace")
    assert code == 1
    assert "is in use by another server" in err
    assert world.client.get("/v1/adapters").status_code == 200


def test_a_folder_that_is_no_backup_and_data_that_is_not_there(world: World, command: Soup, tmp_path: Path) -> None:
    code, _, err = command("restore", tmp_path, "--data", tmp_path / "other")
    assert code == 1
    assert "There is no whole backup in" in err
    assert not (tmp_path / "other").exists()
    code, _, err = command("backup", tmp_path / "backup", "--data", tmp_path / "other")
    assert code == 1
    assert "There is no database in" in err
    with pytest.raises(Exception, match="no whole backup"):
        read_manifest(tmp_path / "backup")
