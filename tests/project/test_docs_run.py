"""The documentation's sessions are run: README's with curl and with openai, the tutorial, marked blocks, trainings.

They run as people would: shell blocks by a shell, Python by Python, over a real port. What `make demo` would have left
in `.demo` is built here around the tiny base model.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from adaptersoup.cli.app import run as soup_command
from adaptersoup.client.client import SoupClient
from registry.adapters.weights import save_tensors
from registry.base_model import LoadedBase, shape_of
from registry.formats import AdapterContents, read_directory, write_directory
from registry.spec import LoraConfig, LoraModule
from tests.registry.random_adapters import drawn
from tests.repository import REPOSITORY
from tests.service.passages import passages
from tests.service.servers import Live, World, open_live, open_world, write_bases
from tests.service.without_processes import trains_here
from tests.texts_file import write_texts

pytestmark = pytest.mark.slow

BASE = "smollm2-135m"
DOMAINS = {"classic_novels": "kitchen", "king_james_bible": "court", "python_peps": "code"}
SAMPLE = 40
"""Passages of a sample: fewer than a reader's, as nobody reads the numbers."""
SMALLER = {
    "[part.strip() for": "[part.strip()[:300] for",
    "passages[:60]": "passages[:20]",
    "passages[60:120]": "passages[20:40]",
    "passages[120:180]": "passages[40:60]",
    "passages[180:]": "passages[60:140]",
    "--steps 30": "--steps 3",
}
"""What the tutorial's training is given here."""
MARKED = re.compile(r"<!-- run(?:: (?P<what>[a-z]+))? -->\n```(?P<language>sh|python)\n(?P<code>.*?)```", re.DOTALL)

needs_curl = pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")


def blocks(page: str) -> list[tuple[str | None, str, str]]:
    """(label, language, code) of every marked block of a page."""
    text = (REPOSITORY / page).read_text(encoding="utf-8")
    return [(match["what"], match["language"], match["code"]) for match in MARKED.finditer(text)]


@dataclass
class Home:
    """A folder as `make demo` leaves it, its server, and the environment to run a block in."""

    folder: Path
    live: Live

    def environment(self) -> dict[str, str]:
        keep = {name: value for name, value in os.environ.items() if not name.startswith("SOUP_")}
        return {
            **keep,
            "PATH": f"{self.folder / 'bin'}{os.pathsep}{keep['PATH']}",
            "PYTHONPATH": f"{REPOSITORY}{os.pathsep}{self.folder}",
            "SOUP_URL": self.live.url,
            "OMP_NUM_THREADS": "1",
            "SOUP_DATA": ".demo/smollm2/server",
            "PYTHONWARNINGS": "error",
        }

    def run(self, language: str, code: str) -> str:
        """Return the stdout of a block; a failing command fails the test."""
        code = code.replace("http://127.0.0.1:8000", self.live.url)
        command = [sys.executable, "-c", code] if language == "python" else ["bash", "-euo", "pipefail", "-c", code]
        done = subprocess.run(
            command, cwd=self.folder, env=self.environment(), capture_output=True, text=True, timeout=300, check=False
        )
        assert done.returncode == 0, f"{code}\n--- stdout\n{done.stdout}\n--- stderr\n{done.stderr}"
        return done.stdout


@pytest.fixture(scope="module")
def home(tiny_base_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    folder = tmp_path_factory.mktemp("home")
    demo_home, shipped = folder / ".demo" / "smollm2", folder / "demo" / "domains"
    demo_home.mkdir(parents=True)
    bases = write_bases(demo_home / "bases.toml", {BASE: tiny_base_dir})
    write_texts(shipped / "novel" / "fairy_tales" / "valid.jsonl", passages("kitchen", SAMPLE, seed=20))
    write_texts(shipped / "novel" / "fairy_tales" / "test.jsonl", passages("kitchen", 20, seed=40))
    (folder / "bin").mkdir()
    soup = folder / "bin" / "soup"
    soup.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m adaptersoup.cli "$@"\n')
    soup.chmod(0o755)
    for world in open_world(demo_home / "server", bases):
        _push(world, shipped / "adapters")
        for live in open_live(world):
            yield Home(folder, live)


def _push(world: World, folder: Path) -> None:
    """LoRAs as the demo's, on disk and on the server, ready to be selected."""
    shape = shape_of(world.runtime.bases[BASE].entry, world.runtime.settings.cache)
    config = LoraConfig.of({path: LoraModule(8, 16.0) for path in shape.linears if "lm_head" not in path})
    for live in open_live(world):
        with SoupClient(live.url, world.admin) as client:
            for number, (domain, words) in enumerate(DOMAINS.items()):
                written = write_directory(
                    folder / domain,
                    AdapterContents(
                        config=config,
                        domain=domain,
                        weights=save_tensors(drawn(config, shape, seed=number)),
                        base_model=BASE,
                        base_fingerprint=shape.fingerprint,
                        texts=passages(words, SAMPLE),
                    ),
                )
                client.wait_job(str(client.push_directory(written, name=f"demo/{domain}")["job"]))


# --- readme ---------------------------------------------------------------------------------------


# In this order: the openai session uses what the curl session made.


@needs_curl
def test_the_session_with_curl(home: Home) -> None:
    (code,) = [code for label, _, code in blocks("README.md") if label == "session"]
    decoder, answers, rest = json.JSONDecoder(), [], home.run("sh", code).strip()
    while rest:
        value, end = decoder.raw_decode(rest)
        answers.append(value)
        rest = rest[end:].strip()
    assert [value.get("object") for value in answers] == ["adapter", "perplexity", "soup", "text_completion"]
    assert answers[1]["baseline"]["model"] == f"base/{BASE}"
    assert answers[3]["usage"]["completion_tokens"] > 0
    cooked = json.loads((home.folder / ".demo/soup.json").read_text())
    assert cooked["object"] == "soup", cooked
    assert cooked["sample"]["kept"] == SAMPLE
    client = home.live.world.client
    pushed = client.get("/v1/adapters/team/novels").json()
    assert (pushed["domain"], pushed["sample"]["kept"]) == ("classic_novels", SAMPLE)
    assert pushed["config"]["method"] == "lora"
    assert client.get("/v1/adapters/team/half").json()["kind"] == "soup"


@needs_curl
def test_the_session_with_openai(home: Home) -> None:
    (code,) = [code for _, language, code in blocks("README.md") if language == "python"]
    output = home.run("python", f"import warnings\nwarnings.simplefilter('default')\n{code}")
    assert "team/half" in output.splitlines()[0]
    models = [line.split()[0] for line in output.splitlines()[1:]]
    assert models == [f"base/{BASE}", "demo/classic_novels", "team/half"]


@pytest.mark.long
def test_the_tutorial(home: Home) -> None:
    marked_blocks = blocks("docs/tutorial.md")
    (prepare,) = [code for _, language, code in marked_blocks if language == "python"]
    shell = "\n".join(code for _, language, code in marked_blocks if language == "sh")
    for text, less in SMALLER.items():
        assert text in prepare + shell
        prepare, shell = prepare.replace(text, less), shell.replace(text, less)
    assert int(home.run("python", f"import warnings\nwarnings.simplefilter('default')\n{prepare}").split()[0]) > 100
    output = home.run("sh", shell)
    for text in ("demo/classic_novels@1", "tutorial/licences@1", "effort quick"):  # the last row of `soup compare`
        assert text in output
    assert home.live.world.client.get("/v1/adapters/tutorial/licences").status_code == 410


def test_embeddings_made_by_the_client_are_those_of_the_server(home: Home, tiny_base_dir: Path) -> None:
    ((_, language, code),) = blocks("docs/how-to/write-an-adapter-directory.md")
    write_bases(home.folder / "bases.toml", {"small": tiny_base_dir})
    digest, unit, shape = home.run(language, f"import warnings\nwarnings.simplefilter('default')\n{code}").split(" ", 2)
    encoders = home.live.world.runtime.bases[BASE].encoders()
    assert (encoders[digest].name, encoders[digest].unit) == ("base", unit)
    assert shape.strip() == "(2, 32)"
    assert (home.folder / "embeddings.safetensors").is_file()


@needs_curl
def test_a_training_is_asked_for_with_curl(home: Home, base: LoadedBase, monkeypatch: pytest.MonkeyPatch) -> None:
    trains_here(monkeypatch, base)
    ((label, language, code),) = blocks("docs/how-to/train-adapters.md")
    assert label == "training"
    write_texts(home.folder / "texts" / "law" / "train.jsonl", passages("court", 60))
    code = code.replace('"small"', f'"{BASE}"').replace('"steps": 500', '"steps": 2, "block": 32')
    answers = home.run(language, f"export SOUP_KEY={home.live.world.admin}\n{code}").replace("}{", "}\n{").splitlines()
    stored, job = (json.loads(answer) for answer in answers)
    assert (stored["object"], job["kind"]) == ("blob", "train")
    with SoupClient(home.live.url, home.live.world.admin) as client:
        assert client.wait_job(job["id"])["result"]["adapter"] == "team/law@1"
        assert client.adapter("team/law")["config"]["bottleneck"] == 48


def test_the_commands_that_train_adapters(tiny_base_dir, tmp_path, monkeypatch):
    text = "\n".join(
        page.read_text(encoding="utf-8").replace("\\\n", " ")
        for page in sorted((REPOSITORY / "docs/how-to").glob("train-*.md"))
        if page.name != "train-on-ray.md"
    )
    commands = [
        shlex.split(line)
        for block in re.findall(r"(?<!-->\n)```sh\n(.*?)```", text, re.DOTALL)
        for line in block.splitlines()
    ]  # what is marked to be run needs a server, and is run with the other pages
    assert len(commands) == 9
    for domain in ("law", "medicine"):
        texts = [f"The {domain} of case {i} is contract {i * 7}, and void." for i in range(60)]
        write_texts(tmp_path / "texts" / domain / "train.jsonl", texts[:40])
        write_texts(tmp_path / "texts" / domain / "valid.jsonl", texts[40:])
    shutil.copytree(tiny_base_dir, tmp_path / "models" / "small")
    monkeypatch.chdir(tmp_path)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for program, *arguments in commands:
            assert program == "soup"
            assert soup_command([*arguments, "--steps", "2", "--batch", "2"]) == 0
    finally:
        torch.set_num_threads(threads)
    trained = {path.name: read_directory(path) for path in (tmp_path / "grid").iterdir()}
    assert len(trained) == 18
    assert "law-lr0.001-seed1" in trained  # as the page names one
    assert {path.name for path in (tmp_path / "adapters").iterdir()} == {"law", "long"}
    assert not (tmp_path / "state" / "long").exists()
    more = {path.name: read_directory(path).config for path in (tmp_path / "more").iterdir()}
    assert {name: config.method for name, config in more.items()} == {
        "mam": "union",
        "mixed": "bottleneck",
        "mixed-bank": "adamix",
        "sparse": "bottleneck",
        "wide": "bottleneck",
    }
    assert (more["wide"].bottleneck, more["wide"].pruned.sparsity) == (32, 0.5)
    for name in ("law", "law-all"):
        assert json.loads((tmp_path / "lora" / name / "adapter_config.json").read_text())["peft_type"] == "LORA"
