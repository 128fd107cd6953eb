"""The demo as people run it: a real server process on loopback, driven by the command line, over tiny adapters."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from demo import run as demo_run
from demo.__main__ import main
from demo.server import DemoFailed, running
from registry.adapters import create, paper_config
from registry.adapters.weights import save_tensors
from registry.base_model import load_base
from registry.errors import SoupError
from registry.spec import BaseEntry
from tests.repository import REPOSITORY

pytestmark = pytest.mark.slow

WORDS = {
    "law": ["court", "judge", "void", "contract", "claim", "appeal", "clause", "order"],
    "cooking": ["onion", "oil", "stir", "golden", "heat", "salt", "pan", "butter"],
    "poems": ["court", "onion", "judge", "oil", "moon", "star", "night", "song"],
}


def passages(domain: str, count: int, start: int) -> list[str]:
    words = WORDS[domain]
    return [
        ". ".join(f"The {words[(i + k) % 8]} and the {words[(i * k + 3) % 8]} {i}" for k in range(6))
        for i in range(start, start + count)
    ]


def write(path: Path, texts: list[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(b"".join(json.dumps({"text": text}).encode() + b"\n" for text in texts)))


@pytest.fixture
def world(tmp_path, tiny_base_dir, monkeypatch):
    """Data, base and neutral adapters, as `make demo` takes them, in the current folder."""
    base = load_base(BaseEntry(id="tiny", source=str(tiny_base_dir)))
    initial = create(paper_config("bapna_firat", bottleneck=4), base.shape, seed=1).state_dict()
    adapters = tmp_path / "adapters"
    adapters.mkdir()
    for number, name in enumerate(("", "law", "cooking", "control_mixed")):
        rng = torch.Generator().manual_seed(number)
        tensors = {
            key.replace(".ffn.", "."): value + (0.2 * torch.randn(value.shape, generator=rng) if name else 0)
            for key, value in initial.items()
        }
        if not name:
            (adapters / "initial.safetensors").write_bytes(save_tensors(tensors))
            continue
        (adapters / name).mkdir()
        (adapters / name / "adapter.safetensors").write_bytes(save_tensors(tensors))
        (adapters / name / "adapter.json").write_text('{"structure": "bapna_firat", "bottleneck": 4}')
    for domain in ("law", "cooking"):
        write(tmp_path / "data" / "train" / domain / "train.jsonl.gz", passages(domain, 30, 0))
    write(tmp_path / "data" / "novel" / "poems" / "valid.jsonl.gz", passages("poems", 24, 0))
    write(tmp_path / "data" / "novel" / "poems" / "test.jsonl.gz", passages("poems", 21, 100))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("SOUP_DATABASE_URL", "postgresql://somebody/elses")  # of another server: must not matter
    return ["--data", "data", "--base", str(tiny_base_dir), "--adapters", "adapters"]


def servers() -> list[str]:
    """Command lines of `soup serve` processes that this process started."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((path / "stat").read_text().rsplit(")", 1)[1].split()[1])
            line = (path / "cmdline").read_text()
        except (OSError, ValueError, IndexError):
            continue
        if parent == os.getpid() and "adaptersoup.cli" in line and "serve" in line:
            found.append(line)
    return found


def test_the_whole_demo(world, capsys):
    assert main([*world, "--out", "results/main_job.json"]) == 0
    said = capsys.readouterr()
    for row in ("base model", "control", "single, similarity", "soup, similarity", "soup, uniform",
                "soup, clustering (paper)", "soup, clustering (default)", "oracle: best single adapter",
                "the service, verified"):  # fmt: skip
        assert f"\n  {row}  " in said.out or f"\n{row}: in every domain the same as " in said.out
    assert "arithmetic  geometric  bits/byte  to the base  to the control" in said.out
    sentence = said.out.splitlines()[1]
    assert sentence.startswith("1 novel domain: base ")
    assert "\npoems\n  base model " in said.out
    assert max(map(len, said.out.split("Test passages")[0].splitlines()[2:])) <= 100
    assert "$ soup generate base/" in said.out
    assert "What to do next" in said.out
    picture = next(line.removeprefix("Picture: ") for line in said.out.splitlines() if line.startswith("Picture: "))
    drawn = Path(picture).read_bytes()
    assert b"<svg" in drawn
    assert b">poems</text>" in drawn
    assert servers() == []

    result = json.loads(Path("results/main_job.json").read_text())
    assert result["name"] == "main_job"
    assert Path("results/main_job.svg").read_bytes() == drawn
    base = next(row for row in result["rows"] if row["method"] == "base_model")
    assert base["passages"] == 21
    assert {row["adapter"] for row in result["rows"] if row["method"] == "adapter"} == {"law", "cooking"}
    uniform = next(row for row in result["rows"] if row["method"] == "soup_uniform")
    assert uniform["taken"].split(", ") == ["cooking", "law"] or uniform["taken"].split(", ") == ["law", "cooking"]
    assert uniform["perplexity"] != base["perplexity"]
    service = next(row for row in result["rows"] if row["method"] == "the_service_verified")
    assert service["abstained"] == (service["model"] == f"base/{Path(world[3]).name}")
    assert "demo/law@1" in json.dumps(result["rows"])


@pytest.mark.long
def test_the_demo_again_on_postgresql_scores_nothing_again(world, postgres, capsys):
    assert main([*world, "--out", "results/main_job.json"]) == 0
    first = capsys.readouterr().out
    picture = Path(next(line.removeprefix("Picture: ") for line in first.splitlines() if line.startswith("Picture: ")))
    drawn = picture.read_bytes()
    home = next(Path(".demo").glob("main_job-*"))
    scores = {path.name: path.stat().st_mtime_ns for path in (home / "scores-float32").iterdir()}
    shutil.rmtree(home / "server")
    url = postgres.url(empty=True)
    assert main([*world, "--database-url", url, "--out", "results/main_job.json"]) == 0
    assert not (home / "server" / "soup.db").exists()
    again = {path.name: path.stat().st_mtime_ns for path in (home / "scores-float32").iterdir()}
    assert again == scores  # nothing was scored again: all digests are the same
    there = capsys.readouterr().out
    assert there.splitlines()[1].split(";")[0] == first.splitlines()[1].split(";")[0]  # but for the seconds
    assert there.split("What to do next")[0].splitlines()[2:] == first.split("What to do next")[0].splitlines()[2:]
    assert picture.read_bytes() == drawn
    assert json.loads(Path("results/main_job.json").read_text())["command"].endswith("results/main_job.json")
    assert url not in Path("results/main_job.json").read_text()


def test_a_failing_command_is_told_and_the_server_is_stopped_when_the_demo_fails(world, monkeypatch, capsys):
    def fails(_kitchen, server, _talk):
        assert len(servers()) == 1
        assert json.loads(server.soup("ls", "--json"))["data"] == []
        with pytest.raises(DemoFailed, match=r"(?s)`soup show demo/none` failed with exit code 1:.*demo/none"):
            server.soup("show", "demo/none")
        raise SoupError("Something in the middle broke.")

    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(demo_run, "_push", fails)
    assert main(world) == 1
    assert "Something in the middle broke." in capsys.readouterr().err
    assert servers() == []
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_server_that_cannot_start_says_why(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    with (
        pytest.raises(DemoFailed, match=r"(?s)ended with exit code 1.*no-such-bases\.toml"),
        running(tmp_path / "no-such-bases.toml", tmp_path / "server"),
    ):
        pytest.fail("it started")
    assert servers() == []


@pytest.mark.parametrize("arguments", [["--data", "x"], ["--base", "x", "--adapters", "y"]])
def test_data_and_adapters_go_together(arguments, capsys):
    assert main(arguments) == 2
    assert "give" in capsys.readouterr().err


def test_what_is_not_there_is_said_in_one_sentence(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["--data", "none", "--base", "none", "--adapters", "none"]) == 1
    err = capsys.readouterr().err
    assert err.startswith("error: none holds no <domain>/adapter.safetensors")
    assert len(err.splitlines()) == 1


def test_help_is_quick_and_needs_no_torch():
    check = "import sys\nfrom demo.__main__ import main\ntry:\n    main(['--help'])\nexcept SystemExit:\n    pass\n"
    done = subprocess.run(
        [sys.executable, "-c", check + "assert 'torch' not in sys.modules"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "--adapters" in done.stdout
