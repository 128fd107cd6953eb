"""A special token that generation_config.json lists ends a completion, as the EOS does."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from registry.base_model import load_base
from registry.spec import BaseEntry
from tests.service.servers import World

PROMPT = [0, 40, 41, 42, 43, 44]
LONG = 8


@pytest.fixture(scope="module")
def said(tiny_base_dir: Path) -> list[int]:
    """What the tiny base says after the prompt, greedily."""
    base = load_base(BaseEntry(id="tiny", source=str(tiny_base_dir)))
    ids = torch.tensor([PROMPT])
    mask = torch.ones_like(ids)
    out = base.model.generate(ids, attention_mask=mask, max_new_tokens=LONG, do_sample=False, pad_token_id=0)
    return [int(token) for token in out[0, len(PROMPT) :]]


@pytest.fixture(scope="module")
def served(tiny_base_dir: Path, said: list[int], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The tiny base, and a copy in whose tokenizer the last token it says is special and listed."""
    folder = Path(shutil.copytree(tiny_base_dir, tmp_path_factory.mktemp("ends") / "model"))
    file = folder / "tokenizer.json"
    saved = json.loads(file.read_text())
    text = next(text for text, token in saved["model"]["vocab"].items() if token == said[-1])
    saved["added_tokens"].append({**saved["added_tokens"][0], "id": said[-1], "content": text})
    file.write_text(json.dumps(saved))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [0, said[-1]]}))
    return {"tiny": tiny_base_dir, "listed": folder}


def test_a_listed_special_token_ends_a_completion(world: World, said: list[int]) -> None:
    def asked(model: str) -> Any:
        body = {"model": model, "prompt": PROMPT, "temperature": 0, "max_tokens": LONG + 2, "stop": None}
        answer = world.client.post("/v1/completions", json=body).json()
        return answer["usage"]["completion_tokens"], answer["choices"][0]["finish_reason"]

    assert 0 not in said
    assert asked("listed") == (said.index(said[-1]) + 1, "stop")
    assert asked("tiny") == (LONG + 2, "length")
