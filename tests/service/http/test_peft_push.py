"""PEFT directories at the command line and over HTTP: pushed as they lie on disk, refused in words, pulled again."""

from __future__ import annotations

import base64
import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import peft
import pytest
import torch

from registry.base_model import load_base
from registry.spec import BaseEntry
from tests.adaptersoup.cli.outcome import done, refused
from tests.service.answers import answered
from tests.service.servers import Live, Soup, World
from tests.tiny_models import build_tiny_base

WEIGHTS = "adapter_model.safetensors"
SAMPLE = [f"The court held that contract {number} was void for want of consideration." for number in range(30)]
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:peft")


@pytest.fixture(scope="module")
def served(tiny_base_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A GPT-2 under one name, and a Llama under two."""
    llama = build_tiny_base(tmp_path_factory.mktemp("llama") / "base", model_type="llama")
    return {"small": tiny_base_dir, "llama": llama, "llama-two": llama}


@pytest.fixture(scope="module")
def models(served: dict[str, Path]) -> dict[str, Any]:
    return {name: load_base(BaseEntry(id=name, source=str(served[name]))).model for name in ("small", "llama")}


@pytest.fixture
def lora(models: dict[str, Any], tmp_path: Path) -> Callable[..., Path]:
    """Writes a PEFT directory for one of the base models."""

    def write(base: str = "small", *, name: str = "lora", **options: Any) -> Path:
        module = "c_attn" if base == "small" else "q_proj"
        config = peft.LoraConfig(
            r=2, task_type="CAUSAL_LM", fan_in_fan_out=base == "small", **{"target_modules": [module], **options}
        )
        torch.manual_seed(0)
        model = peft.get_peft_model(copy.deepcopy(models[base]), config)
        for key, parameter in model.named_parameters():
            if "lora_B" in key:
                torch.nn.init.normal_(parameter, std=0.5)
        model.save_pretrained(str(tmp_path / name))
        return tmp_path / name

    return write


@pytest.fixture
def sample(tmp_path: Path) -> Path:
    file = tmp_path / "law.jsonl"
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in SAMPLE))
    return file


def body(folder: Path, **fields: Any) -> dict[str, Any]:
    """A manifest as somebody with curl writes it: PEFT's two files as they are."""
    return {
        "name": "acme/curled",
        "domain": "law",
        "base_model": "small",
        "peft_config": json.loads((folder / "adapter_config.json").read_text()),
        "files": {WEIGHTS: {"base64": base64.b64encode((folder / WEIGHTS).read_bytes()).decode()}},
        **fields,
    }


# --- command line ---------------------------------------------------------------------------------


def test_as_it_lies_on_disk_there_and_back(soup: Soup, lora: Callable[..., Path], sample: Path, tmp_path: Path) -> None:
    folder = lora(alpha_pattern={"h.1.attn.c_attn": 5})
    arguments = ("--name", "acme/law", "--domain", "law", "--sample", sample, "--wait")
    assert done(soup("push", folder, *arguments))[0] == "acme/law@1\n"
    row = json.loads(soup("show", "acme/law", "--json")[1])
    assert (row["base_model"], row["config"]["method"], row["sample_state"]) == ("small", "lora", "ready")
    assert "rank 2, alpha 5 on transformer.h.*.attn.c_attn of 1 layers" in " ".join(soup("show", "acme/law")[1].split())
    assert "lora r2" in soup("ls", "law")[1]

    assert soup("pull", "acme/law", tmp_path / "pulled")[0] == 0
    assert (tmp_path / "pulled" / WEIGHTS).read_bytes() == (folder / WEIGHTS).read_bytes()
    assert soup("push", tmp_path / "pulled", "--name", "acme/law")[:2] == (0, "acme/law@1\n")


def test_what_is_served_is_what_peft_says(
    soup: Soup, lora: Callable[..., Path], models: dict[str, Any], live: Live
) -> None:
    folder = lora(use_rslora=True, name="served")
    assert soup("push", folder, "--name", "acme/served", "--domain", "law")[0] == 0
    ids = [0, 30, 31, 32, 33]
    request = {"model": "acme/served", "prompt": ids, "max_tokens": 1, "temperature": 0, "logprobs": 1, "echo": True}
    completion = live.world.client.post("/v1/completions", json=request).json()
    model = peft.PeftModel.from_pretrained(copy.deepcopy(models["small"]), str(folder)).eval()
    with torch.inference_mode():
        scores = torch.log_softmax(model(input_ids=torch.tensor([ids])).logits[0], dim=-1)
    expected = [float(scores[at, token]) for at, token in enumerate(ids[1:])]
    assert completion["choices"][0]["logprobs"]["token_logprobs"][1 : len(ids)] == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize(
    ("fields", "flags", "sentence"),
    [
        ({}, [], "does not say which domain the adapter is of: give --domain."),
        ({"use_dora": True}, ["--domain", "law"], "use_dora is not supported: it means DoRA"),
    ],
)
def test_what_is_refused_before_anything_is_sent(
    soup: Soup, lora: Callable[..., Path], fields: dict[str, bool], flags: list[str], sentence: str
) -> None:
    assert sentence in refused(soup("push", lora(**fields), "--name", "acme/nowhere", *flags))


def test_a_base_that_two_entries_match(soup: Soup, lora: Callable[..., Path], served: dict[str, Path]) -> None:
    folder = lora("llama")
    err = refused(soup("push", folder, "--name", "acme/twins", "--domain", "law"), 3)
    assert "2 base models here (llama, llama-two) are that one" in err
    assert soup("push", folder, "--name", "acme/twins", "--domain", "law", "--base", "base/llama-two")[0] == 0
    assert json.loads(soup("show", "acme/twins", "--json")[1])["base_model"] == "llama-two"


def test_pefts_json_as_it_is(world: World, lora: Callable[..., Path]) -> None:
    answer = answered(world.client.post("/v1/adapters", json=body(lora(name="curl"))), 201)
    second_answer = world.client.post(
        "/v1/adapters", json=body(lora(name="curl"), peft_config=None, config=answer["config"])
    )
    assert answered(second_answer)["digest"] == answer["digest"]
