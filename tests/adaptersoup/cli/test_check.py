"""`soup check` over the data folder of a server that runs: what it says, and how it ends."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.registry.damaged_files import flip
from tests.service.servers import Soup, World

SETTINGS = {"job_workers": 0, "preload": False}


@pytest.fixture
def check(world: World, command: Soup) -> Soup:
    """Runs `soup check` over the server's database and folder."""
    settings = world.runtime.settings
    url = [] if settings.database_url is None else ["--database-url", settings.database]
    return lambda *flags: command("check", "--data", settings.data, *url, *flags)


@pytest.fixture
def place(world: World) -> Path:
    """The weights of an adapter, in their file."""
    digest = world.push("acme/law", seed=1)["weights_blob"]
    return world.runtime.settings.blobs_dir / digest[7:9] / digest[7:]


def test_all_is_well(check: Soup, place: Path) -> None:
    for flags in ([], ["--all"], ["--all", "--rate", "1000000000"]):
        code, out, err = check(*flags)
        assert (code, out) == (0, ""), err
        assert "blobs, " in err
        assert err.endswith("bytes read: 0 missing, 0 damaged, 0 unreadable.\n")


def test_what_is_not_whole_is_named_and_the_command_fails(check: Soup, place: Path) -> None:
    before = flip(place)
    code, _, _ = check()
    assert code == 0  # of the right size: only --all reads it
    code, out, err = check("--all")
    assert code == 1
    assert "BLOB" in out
    assert f"sha256:{place.name}  damaged  weights of acme/law@1" in out
    assert err.endswith("0 missing, 1 damaged, 0 unreadable.\n")
    place.unlink()
    code, out, _ = check("--json")
    told = json.loads(out)
    assert (code, told["missing"], told["bytes"]) == (1, 1, 0)
    assert told["unsound"] == [
        {"digest": f"sha256:{place.name}", "problem": "missing", "named_by": ["weights of acme/law@1"]}
    ]
    place.write_bytes(before)
    assert check("--all")[0] == 0


def test_a_folder_without_a_database_stays_without(command: Soup, tmp_path: Path) -> None:
    code, _, err = command("check", "--data", tmp_path / "nothing")
    assert (code, err) == (1, f"Error: There is no database in {tmp_path / 'nothing'} (--data or SOUP_DATA).\n")
    assert not (tmp_path / "nothing").exists()
