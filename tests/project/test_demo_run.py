"""The demo as people run it: a real server process on loopback, driven by the command line, over tiny adapters."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import psutil
import pytest

from demo import run as demo_run
from demo import server as demo_server
from demo.__main__ import main
from demo.server import DemoFailed, running
from registry.base_model import shape_of
from registry.errors import SoupError
from registry.spec import BaseEntry
from tests.adaptersoup.cli.test_cold_start import loaded
from tests.project.test_demo_model import write_neutral
from tests.repository import REPOSITORY
from tests.service.passages import passages
from tests.texts_file import write_texts

pytestmark = pytest.mark.slow


@pytest.fixture
def world(tmp_path, tiny_base_dir, monkeypatch):
    """Data, base and neutral adapters, as `make demo` takes them, in the current folder."""
    shape = shape_of(BaseEntry(id="tiny", source=str(tiny_base_dir)))
    write_neutral(tmp_path / "adapters", shape, ("law", "cooking", "control_mixed"))
    for domain, words in (("law", "court"), ("cooking", "kitchen")):
        write_texts(tmp_path / "data" / "train" / domain / "train.jsonl.gz", passages(words, 30))
    write_texts(tmp_path / "data" / "novel" / "poems" / "valid.jsonl.gz", passages("code", 24, seed=1))
    write_texts(tmp_path / "data" / "novel" / "poems" / "test.jsonl.gz", passages("code", 21, seed=2))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("SOUP_DATABASE_URL", "postgresql://somebody/elses")  # of another server: must not matter
    return ["--data", "data", "--base", str(tiny_base_dir), "--adapters", "adapters"]


def servers() -> list[psutil.Process]:
    """Processes of `soup serve` that this process started."""
    ours = [process for process in psutil.process_iter(["ppid", "cmdline"]) if process.info["ppid"] == os.getpid()]
    return [process for process in ours if "serve" in (process.info["cmdline"] or ())]


def test_the_whole_demo(world, capsys):
    assert main([*world, "--out", "results/main_job.json"]) == 0
    output = capsys.readouterr()
    for row in (
        "base model",
        "control",
        "single, similarity",
        "soup, similarity",
        "soup, uniform",
        "soup, clustering (paper)",
        "soup, clustering (default)",
        "oracle: best single adapter",
        "the service, verified",
    ):
        assert f"\n  {row}  " in output.out or f"\n{row}: in every domain the same as " in output.out
    assert "arithmetic  geometric  bits/byte  to the base  to the control" in output.out
    assert output.out.splitlines()[1].startswith("1 novel domain: base ")
    assert "\npoems\n  base model " in output.out
    assert max(map(len, output.out.split("Test passages")[0].splitlines()[2:])) <= 100
    assert "$ soup generate base/" in output.out
    assert "What to do next" in output.out
    picture = next(line.removeprefix("Picture: ") for line in output.out.splitlines() if line.startswith("Picture: "))
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
    assert {"demo/law@1", "demo/cooking@1"} & {row.get("model") for row in result["rows"]}


SOUP = """
import pathlib, signal, sys
match sys.argv[1]:
    case "serve":
        data = pathlib.Path(sys.argv[sys.argv.index("--data") + 1])
        data.mkdir()
        (data / "admin.key").write_text("sk-soup-x")
        print('{"url": "http://127.0.0.1:9"}', flush=True)
        signal.pause()
    case "ls":
        print('{"data": []}')
    case "show":
        sys.exit(f"Error: There is no adapter {sys.argv[2]}.")
"""


def test_a_failing_command_is_told_and_the_server_is_stopped_when_the_demo_fails(world, tmp_path, monkeypatch, capsys):
    def fails(_kitchen, server, _talk):
        assert len(servers()) == 1
        assert json.loads(server.soup("ls", "--json"))["data"] == []
        with pytest.raises(DemoFailed, match=r"(?s)`soup show demo/none` failed with exit code 1:.*demo/none"):
            server.soup("show", "demo/none")
        raise SoupError("Something in the middle broke.")

    program = tmp_path / "adaptersoup.cli"
    program.write_text(SOUP)
    monkeypatch.setattr(demo_server, "SOUP", (sys.executable, str(program)))
    handler = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(demo_run, "_push", fails)
    assert main(world) == 1
    assert "Something in the middle broke." in capsys.readouterr().err
    assert servers() == []
    assert signal.getsignal(signal.SIGTERM) == handler


def test_a_server_that_cannot_start_says_why(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    with (
        pytest.raises(DemoFailed, match=r"(?s)ended with exit code 1.*no-such-bases\.toml"),
        running(tmp_path / "no-such-bases.toml", tmp_path / "server"),
    ):
        pytest.fail("it started")
    assert servers() == []


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--data", "x"], 2, "give both"),
        (["--base", "x", "--adapters", "y"], 2, "give both"),
        (["--data", "none", "--base", "none", "--adapters", "none"], 1, "none holds no <domain>/adapter.safetensors"),
    ],
)
def test_what_is_missing_is_told_in_one_sentence(arguments, code, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == code
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert message in line


def test_help_needs_no_torch():
    program = """
from demo.__main__ import main
try:
    main(["--help"])
except SystemExit as end:
    assert not end.code
"""
    assert loaded(program, {"torch"}) == set()
