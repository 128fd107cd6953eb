"""The commands of docs/how-to/train-adapters.md do what the page says, on a tiny base and with few steps."""

from __future__ import annotations

import json
import re
import shlex
import shutil

import pytest
import torch

from registry.formats import read_directory
from service.cli.app import run as soup
from tests.repository import REPOSITORY

pytestmark = pytest.mark.slow

PAGE = REPOSITORY / "docs" / "how-to" / "train-adapters.md"


def test_the_commands_of_the_page(tiny_base_dir, tmp_path, monkeypatch):
    text = PAGE.read_text(encoding="utf-8").replace("\\\n", " ")
    commands = [
        shlex.split(line)
        for block in re.findall(r"(?<!-->\n)```sh\n(.*?)```", text, re.DOTALL)
        for line in block.splitlines()
    ]  # what is marked to be run needs a server, and is run with the other pages
    assert len(commands) == 9
    for domain in ("law", "medicine"):
        folder = tmp_path / "texts" / domain
        folder.mkdir(parents=True)
        lines = [json.dumps({"text": f"The {domain} of case {i} is contract {i * 7}, and void."}) for i in range(60)]
        (folder / "train.jsonl").write_text("\n".join(lines[:40]))
        (folder / "valid.jsonl").write_text("\n".join(lines[40:]))
    shutil.copytree(tiny_base_dir, tmp_path / "models" / "small")
    monkeypatch.chdir(tmp_path)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for program, *arguments in commands:
            assert program == "soup"
            assert soup([*arguments, "--steps", "2", "--batch", "2"]) == 0
    finally:
        torch.set_num_threads(threads)
    made = {path.name: read_directory(path) for path in (tmp_path / "grid").iterdir()}
    assert len(made) == 18
    assert "law-lr0.001-seed1" in made  # as the page names one
    assert {path.name for path in (tmp_path / "adapters").iterdir()} == {"law", "long"}
    assert not (tmp_path / "state" / "long").exists()
    more = {path.name: read_directory(path).config for path in (tmp_path / "more").iterdir()}
    assert {name: config.method for name, config in more.items()} == {
        "mam": "union", "mixed": "bottleneck", "mixed-bank": "adamix", "sparse": "bottleneck", "wide": "bottleneck",
    }  # fmt: skip
    assert more["wide"].bottleneck == 32
    assert more["wide"].pruned.sparsity == 0.5
    for name in ("law", "law-all"):
        assert json.loads((tmp_path / "lora" / name / "adapter_config.json").read_text())["peft_type"] == "LORA"
