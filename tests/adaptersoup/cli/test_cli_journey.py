"""The main job by the command line over a real port: push, cook, use, pull, and pictures of what came of it.

On SQLite: the routes that it calls are tested on PostgreSQL as well by the journeys over HTTP and by their own tests.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock, call
from xml.etree import ElementTree

import pytest
from safetensors.torch import load_file, save_file

from adaptersoup.cli import app as cli
from registry.formats import AdapterContents, write_directory
from registry.spec import Provenance
from service.observability import logs
from service.runtime import Runtime
from tests.adaptersoup.cli.outcome import done, refused
from tests.service.passages import WORDS, passages
from tests.service.servers import CONFIG, Live, Soup, adapter_weights, write_bases
from tests.texts_file import write_texts


@pytest.fixture(scope="module")
def folders(live: Live, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("adapters")
    for seed, domain in enumerate(WORDS):
        write_directory(
            root / domain,
            AdapterContents(
                config=CONFIG,
                domain=domain,
                weights=adapter_weights(live.world.runtime, seed=seed),
                base_model="tiny",
                texts=passages(domain, 30),
                provenance=Provenance(init_hash="sha256:" + "d" * 64, init_source="declared"),
            ),
        )
    return root


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("texts")
    (root / "sample.txt").write_text("\n\n".join(passages("court", 30, seed=1)))
    return {"sample": root / "sample.txt", "test": write_texts(root / "test.jsonl", passages("court", 6, seed=2))}


@pytest.fixture(scope="module")
def _pushed(live: Live, folders: Path) -> None:
    """All folders, pushed at once."""
    command = ["push", *map(str, sorted(folders.iterdir())), "--namespace", "team", "--tag", "v1", "--wait"]
    assert cli.run([*command, "--url", live.url, "--key", live.world.admin]) == 0


@pytest.mark.usefixtures("_pushed")
class TestJourney:
    """On one server; none of them needs what another did."""

    def test_cook_and_use(self, soup: Soup, texts: dict[str, Path]) -> None:
        command = ("cook", "--recipe", "team/court=3,team/kitchen=1", "--name", "team/mixed", "--no-verify")
        code, out, err = soup(*command)
        assert (code, out) == (0, "team/mixed@1\n"), err
        assert soup(*command)[1] == out  # cooked before
        generate = ("generate", "team/mixed", "The court", "--temperature", 0, "--max-tokens", 8)
        whole = soup(*generate)[1]
        assert whole.strip("\n")
        assert soup(*generate, "--stream")[1] == whole

    def test_cook_from_a_sample(self, soup: Soup, texts: dict[str, Path]) -> None:
        code, out, err = soup("cook", "--sample", texts["sample"], "--selector", "cosine", "--single", "--no-verify")
        assert (code, out) == (0, "team/court@1\n"), err
        out, err = done(soup("cook", "--sample", texts["sample"], "--selector", "uniform", "--pool-tag", "v1"))
        assert "standard error" in err  # verified on the sample
        assert out.strip() == "base/tiny" or out.startswith("default/soup-")
        out, err = done(soup("cook", "--sample", texts["sample"], "--effort", "quick"))
        assert "TAKES OFF" in err
        assert "on the held-out passages" in err.lower()

    def test_pictures(self, soup: Soup, texts: dict[str, Path], tmp_path: Path) -> None:
        sample = ("--sample", texts["sample"])
        for verb, *flags, title in (
            ("select", *sample, "--selector", "cosine", "chosen of"),
            ("fit", "--selector", "cosine", "cosine over 3 domains"),
            ("cook", "--recipe", "team/court=3,team/kitchen=1", "--name", "team/mixed", "--json", "team/mixed@1"),
            ("ppl", "team/court", "--texts", texts["test"], "--baseline", "base/tiny", "team/court on 6 texts"),
        ):
            file = tmp_path / f"{verb}.svg"
            _, err = done(soup(verb, *flags, "--plot", file))
            assert f"{file} shows it." in err
            assert title in "".join(ElementTree.parse(file).getroot().itertext())
        for wrong in (["--plot", tmp_path / "none" / "c.svg"], ["--plot", "c.png"], ["--plot", "c.svg", "--no-wait"]):
            assert soup("cook", *sample, *wrong)[0] == 2, wrong


# --- serve ----------------------------------------------------------------------------------------


# `soup serve` as people start it: a process of its own.


@pytest.mark.slow
def test_it_prints_its_address_serves_and_stops_clean(
    tiny_base_dir: Path, tmp_path: Path, command: Soup, monkeypatch: pytest.MonkeyPatch
) -> None:
    bases = write_bases(tmp_path / "bases.toml", {"tiny": tiny_base_dir})
    data = tmp_path / "data"
    monkeypatch.delenv("SOUP_KEY", raising=False)
    monkeypatch.setenv("SOUP_DATA", str(data))
    program = [sys.executable, "-m", "adaptersoup.cli", "serve", "--bases", str(bases), "--port", "0", "--json"]
    with subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            announcement = json.loads(process.stdout.readline())
            assert announcement["admin_key"] == str(data / "admin.key")
            assert (data / "admin.key").stat().st_mode & 0o777 == 0o600
            done(command("generate", "base/tiny", "The", "--url", announcement["url"], "--max-tokens", 2))
            assert "--port" in refused(command("serve", "--port", announcement["url"].rpartition(":")[2]))
            assert "in use by another server" in refused(command("migrate"))
        finally:
            process.send_signal(signal.SIGTERM)
            _, log = process.communicate(timeout=60)
    assert process.returncode == 0, log
    assert "Traceback" not in log
    migrated = json.loads(done(command("migrate", "--json"))[0])  # the folder was given back
    assert migrated["before"] == migrated["after"], "its schema is this version's"
    assert migrated["backup"] is None


@pytest.fixture
def broken_bases(tiny_base_dir: Path, tmp_path: Path, signal_handlers: None, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The allowlist of a base model that cannot be loaded, for a server in this process, whose log stays as it is."""
    broken = shutil.copytree(tiny_base_dir, tmp_path / "broken")
    tensors = load_file(broken / "model.safetensors")
    save_file(dict(list(tensors.items())[1:]), broken / "model.safetensors", metadata={"format": "pt"})
    monkeypatch.setattr(logs, "configure_logging", lambda _: None)
    return write_bases(tmp_path / "bases.toml", {"tiny": broken})


MISSING = "  - Tensor transformer.h.0.attn.c_attn.bias is missing.\n"


@pytest.mark.slow
def test_a_base_model_that_cannot_be_loaded_ends_it(command: Soup, broken_bases: Path, tmp_path: Path) -> None:
    code, out, err = command("serve", "--bases", broken_bases, "--port", 0, "--data", tmp_path / "d")
    assert (code, out) == (1, "")
    assert "\nError: " in err
    assert err.endswith(MISSING)


@pytest.mark.slow
def test_a_server_that_fails_ends_at_once_if_a_thread_still_computes(
    command: Soup, broken_bases: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop = Runtime.stop
    exit_now = Mock(side_effect=SystemExit(7))
    monkeypatch.setattr(Runtime, "stop", lambda runtime, *, seconds: stop(runtime, seconds=seconds) and False)
    monkeypatch.setattr(os, "_exit", exit_now)
    code, _, err = command("serve", "--bases", broken_bases, "--port", 0, "--data", tmp_path / "d")
    assert (code, exit_now.mock_calls) == (7, [call(1)])
    assert err.endswith(MISSING)


@pytest.mark.slow
def test_a_new_database_is_made(tmp_path: Path, command: Soup) -> None:
    out, err = done(command("migrate", "--data", tmp_path / "d"))
    assert out.strip()
    assert "From nothing" in err


@pytest.mark.slow
@pytest.mark.parametrize("url", ["nonsense", "oracle://x/y", "sqlite:////nowhere/at/all.db"])
def test_a_database_that_is_none(tmp_path: Path, command: Soup, url: str) -> None:
    assert "SOUP_DATABASE_URL" in refused(command("migrate", "--data", tmp_path / "d", "--database-url", url))
