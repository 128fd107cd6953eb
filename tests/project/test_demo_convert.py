"""Neutral adapters become ours: the same function, the declared initialisation, nothing guessed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch.nn import functional

from demo.job import own_job
from demo.prepare import convert, neutral_domains
from registry.adapters import attached, create, from_tensors, paper_config
from registry.adapters.weights import init_hash, load_tensors, save_tensors
from registry.errors import InvalidManifest, InvalidParameter, InvalidWeights, NotFound
from registry.formats import read_directory
from registry.spec import BaseEntry, BaseShape

CONFIG = paper_config("bapna_firat", bottleneck=8)


def neutral(tensors):
    return {name.replace(".ffn.", "."): tensor for name, tensor in tensors.items()}


def write_neutral(root: Path, shape: BaseShape, names: Sequence[str]) -> None:
    """Neutral adapters from one initialisation, as the shipped ones are."""
    initial = neutral(create(CONFIG, shape, seed=5).state_dict())
    root.mkdir()
    (root / "initial.safetensors").write_bytes(save_tensors(initial))
    about = {"structure": "bapna_firat", "bottleneck": 8, "activation": "relu", "init_seed": 5, "steps": 160}
    for number, name in enumerate(names):
        (root / name).mkdir()
        rng = torch.Generator().manual_seed(number)
        trained = {n: t + 0.1 * torch.randn(t.shape, generator=rng) for n, t in initial.items()}
        (root / name / "adapter.safetensors").write_bytes(save_tensors(trained))
        (root / name / "adapter.json").write_text(json.dumps(about))


@pytest.fixture
def source(tmp_path, base) -> Path:
    """Two adapters and a control."""
    write_neutral(tmp_path / "neutral", base.shape, ("law", "cooking", "control_general"))
    return tmp_path / "neutral"


def converted(source, base, target, **changes):
    values = {"base_model": "tiny", "base_fingerprint": base.shape.fingerprint, "texts": ["a", "b"], **changes}
    return convert(source, "law", target, **values)


def test_the_converted_adapter_computes_what_the_neutral_text_says(source, base, tmp_path):
    """y = h + up(relu(down(norm(h)))), h = the feed-forward module's output, written by hand as a hook."""
    folder = converted(source, base, tmp_path / "out")
    raw = load_tensors((source / "law" / "adapter.safetensors").read_bytes())
    ids = torch.arange(24)[None]

    def hook(i):
        def edit(_module, _args, h):
            x = functional.layer_norm(
                h, h.shape[-1:], raw[f"layers.{i}.norm.weight"], raw[f"layers.{i}.norm.bias"], 1e-5
            )
            x = torch.relu(x @ raw[f"layers.{i}.down.weight"].T + raw[f"layers.{i}.down.bias"])
            return h + x @ raw[f"layers.{i}.up.weight"].T + raw[f"layers.{i}.up.bias"]

        return edit

    handles = [layer.mlp.register_forward_hook(hook(i)) for i, layer in enumerate(base.model.transformer.h)]
    with torch.no_grad():
        expected = base.model(ids).logits
    for handle in handles:
        handle.remove()
    adapter = from_tensors(folder.config, base.shape, load_tensors(folder.weights.read_bytes()))
    with attached(base.model, adapter), torch.no_grad():
        assert torch.allclose(base.model(ids).logits, expected, atol=1e-5)
    with torch.no_grad():
        assert not torch.allclose(base.model(ids).logits, expected, atol=1e-2)


def test_adapters_declare_one_initialisation_where_its_tensors_are_there(source, base, tmp_path):
    made = converted(source, base, tmp_path / "out").provenance
    assert (made.init_source, made.training["steps"]) == ("declared", 160)
    assert made.init_hash == init_hash(create(CONFIG, base.shape, seed=5).state_dict())
    assert read_directory(tmp_path / "out").sample is not None
    (source / "initial.safetensors").unlink()
    without = converted(source, base, tmp_path / "without", texts=None)
    assert (without.provenance.init_source, without.provenance.init_hash, without.sample) == ("unknown", None, None)


@pytest.mark.parametrize(
    ("name", "content", "refused"),
    [
        ("adapter.safetensors", save_tensors({"layers.0.lora_A.weight": torch.zeros(1)}), (InvalidWeights, "lora_A")),
        ("adapter.json", b'{"structure": "houlsby"}', (InvalidManifest, "Bapna-Firat")),
        ("adapter.json", b"{", (InvalidManifest, "not JSON")),
        ("adapter.json", None, (NotFound, "adapter.json")),
    ],
)
def test_what_is_not_neutral_is_refused(name, content, refused, source, base, tmp_path):
    path = source / "law" / name
    path.write_bytes(content) if content is not None else path.unlink()
    with pytest.raises(refused[0], match=refused[1]):
        converted(source, base, tmp_path / "out")
    with pytest.raises(NotFound, match="neutral adapters"):
        neutral_domains(tmp_path / "out")


def test_a_job_needs_an_adapter_for_each_domain_and_at_most_one_control(source, tmp_path, tiny_base_dir):
    data = tmp_path / "data"
    for part in ("train/law", "train/cooking", "novel/poems"):
        (data / part).mkdir(parents=True)
    names = neutral_domains(source)
    entry = BaseEntry(id="tiny", source=str(tiny_base_dir))
    job = own_job(data, entry, source, names)
    assert (job.training, job.novel, job.control) == (("cooking", "law"), ("poems",), "control_general")
    with pytest.raises(InvalidParameter, match="no adapter for law"):
        own_job(data, entry, source, ["cooking"])
    with pytest.raises(InvalidParameter, match="more than one control"):
        own_job(data, entry, source, [*names, "control_two"])
    with pytest.raises(NotFound, match="holds no domains"):
        own_job(tmp_path / "none", entry, source, names)
