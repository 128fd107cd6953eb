"""`soup backup`, `soup restore` and `soup check` over the data folder of a server that answers pushes meanwhile."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from tests.adaptersoup.cli.outcome import done, refused
from tests.postgres import KINDS
from tests.registry.damaged_files import flip
from tests.service.answers import answered
from tests.service.servers import Soup, World, open_world, write_bases

DATABASES = KINDS
SETTINGS = {"job_workers": 0, "preload": False}


def over(world: World, command: Soup, verb: str, *places: Path) -> Soup:
    """Runs a verb over the server's database and folder."""
    settings = world.runtime.settings
    url = [] if settings.database_url is None else ["--database-url", settings.database]
    return lambda *flags: command(verb, *places, "--data", settings.data, *url, *flags)


def test_a_server_goes_on_and_what_it_acknowledged_is_restored(
    world: World, command: Soup, tmp_path: Path, tiny_base_dir: Path
) -> None:
    backup = over(world, command, "backup", tmp_path / "backup")
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
    report = json.loads(out)
    assert (report["object"], report["unsound"], report["lacking"]) == ("backup", [], [])
    assert report["new"] == report["blobs"] >= 1
    _, err = done(backup())
    assert "0 left out (missing or damaged)." in err

    bases = write_bases(tmp_path / "bases.toml", {world.base_id: tiny_base_dir})
    _, err = done(command("restore", tmp_path / "backup", "--data", tmp_path / "other"))
    for restored_world in open_world(tmp_path / "other", bases, **SETTINGS):
        listing = answered(restored_world.client.get("/v1/adapters", params={"limit": 100}))
        assert {"acme/before", *pushed} <= {f"{row['namespace']}/{row['name']}" for row in listing["data"]}


@pytest.mark.one_database
def test_a_folder_that_is_no_backup_and_data_that_is_not_there(world: World, command: Soup, tmp_path: Path) -> None:
    assert "There is no whole backup in" in refused(command("restore", tmp_path, "--data", tmp_path / "other"))
    assert not (tmp_path / "other").exists()
    assert "There is no database in" in refused(command("backup", tmp_path / "backup", "--data", tmp_path / "other"))
    err = refused(command("check", "--data", tmp_path / "other"))
    assert err == f"Error: There is no database in {tmp_path / 'other'} (--data or SOUP_DATA).\n"
    assert not (tmp_path / "other").exists()
    assert not (tmp_path / "backup").exists()


@pytest.mark.one_database
def test_check_names_what_is_not_whole_and_fails(world: World, command: Soup) -> None:
    check = over(world, command, "check")
    digest = world.push("acme/law", seed=3)["weights_blob"]
    file = world.runtime.settings.blobs_dir / digest[7:9] / digest[7:]
    for flags in ([], ["--all"], ["--all", "--rate", "1000000000"]):
        code, out, err = check(*flags)
        assert (code, out) == (0, ""), err
        assert err.endswith("bytes read: 0 missing, 0 damaged, 0 unreadable.\n")
    whole = flip(file)
    assert check()[0] == 0, "of the right size: only --all reads it"
    code, out, err = check("--all")
    assert code == 1
    assert "BLOB" in out
    assert f"sha256:{file.name}  damaged  weights of acme/law@1" in out
    assert err.endswith("0 missing, 1 damaged, 0 unreadable.\n")
    file.unlink()
    code, out, _ = check("--json")
    report = json.loads(out)
    assert (code, report["missing"], report["bytes"]) == (1, 1, 0)
    assert report["unsound"] == [
        {"digest": f"sha256:{file.name}", "problem": "missing", "named_by": ["weights of acme/law@1"]}
    ]
    file.write_bytes(whole)
    assert check("--all")[0] == 0
