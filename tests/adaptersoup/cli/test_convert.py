"""Other formats: `soup convert` to AdapterHub checkpoints and back, and `soup export` for vLLM, llama.cpp and PEFT."""

from __future__ import annotations

import copy
import json
import shutil
import sys
import warnings
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import peft
import pytest
import torch
from safetensors.torch import load_file

from adaptersoup.cli.verbs.export import command_line, exported
from registry.adapters import expected_tensors
from registry.adapters.lora_ranks import is_uniform, uniform
from registry.adapters.weights import load_tensors, save_tensors
from registry.base_model import LoadedBase
from registry.errors import Incompatible, Unavailable
from registry.formats import AdapterContents, AdapterDirectory, place_files, read_directory, write_directory
from registry.formats.adapterhub import read_checkpoint
from registry.spec import BaseShape, BottleneckConfig, Card, LoraConfig
from tests.adaptersoup.cli.outcome import done, refused
from tests.registry.random_adapters import drawn
from tests.repository import REPOSITORY
from tests.service.lora_pushes import lora_weights, push_lora
from tests.service.servers import Soup, World

FIXTURES = REPOSITORY / "tests" / "fixtures" / "adapterhub"
DOMAIN = ("--domain", "US law")


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return set(a) == set(b) and all(torch.equal(a[name], b[name]) and a[name].dtype == b[name].dtype for name in a)


def left_in(folder: Path) -> list[str]:
    """The names of all files in a folder, hidden ones too."""
    return sorted(path.name for path in folder.iterdir())


# --- to ours --------------------------------------------------------------------------------------


def test_a_checkpoint_becomes_ours(command: Soup, tmp_path: Path) -> None:
    (tmp_path / "law.txt").write_text("One passage.\n\nAnother.")
    target = tmp_path / "adapters" / "law"
    code, out, err = command(
        "convert", FIXTURES / "gpt2/seq_bn", target, *DOMAIN, "--base", "small", "--sample", tmp_path / "law.txt"
    )
    assert (code, out) == (0, f"{target}\n")
    assert "head_config.json, pytorch_model_head.bin" in err
    assert "--base" not in err
    assert "--sample" not in err
    folder = read_directory(target)
    checkpoint = read_checkpoint(FIXTURES / "gpt2/seq_bn")
    assert (folder.config, folder.domain, folder.base_model) == (checkpoint.config, "US law", "small")
    assert same(load_tensors(folder.weights.read_bytes()), checkpoint.tensors)
    assert folder.sample.read_text().count('"text"') == 2
    assert folder.provenance.init_source == "unknown"
    assert folder.provenance.training["adapterhub"] == {
        "name": "seq_bn",
        "model_type": "gpt2",
        "model_name": "base",
        "version": "adapters.1.3.0",
    }


def test_what_is_missing_is_said(command: Soup, tmp_path: Path) -> None:
    _, err = done(command("convert", FIXTURES / "gpt2/par_bn", tmp_path / "a", *DOMAIN))
    assert "made for base" in err
    assert "--base" in err
    assert "--sample" in err
    assert "Left out" not in err
    assert read_directory(tmp_path / "a").base_model is None


def test_a_conversion_as_json(command: Soup, tmp_path: Path) -> None:
    out, _ = done(command("convert", FIXTURES / "llama/double_seq_bn", tmp_path / "a", *DOMAIN, "--json"))
    value = json.loads(out)
    assert value["path"] == str(tmp_path / "a")
    assert (value["config"]["structure"], value["config"]["trained_norms"]) == ("houlsby", False)
    assert len(value["notes"]) == 2


def test_the_card_comes_along(command: Soup, tmp_path: Path) -> None:
    source = shutil.copytree(FIXTURES / "gpt2/par_bn", tmp_path / "source")
    (source / "README.md").write_text(
        "---\nlicense: mit\ntags:\n- adapterhub:law/us\n- gpt2\ndatasets:\n- a/b\n---\n\n# Law\n\nWords.\n"
    )
    assert command("convert", source, tmp_path / "a", *DOMAIN)[0] == 0
    assert read_directory(tmp_path / "a").card == Card(license="mit", tags=("gpt2",), description="# Law\n\nWords.")
    (source / "README.md").write_bytes(b"\xff")
    assert command("convert", source, tmp_path / "b", *DOMAIN)[0] == 1


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ([], "--domain"),
        (["--domain", "x" * 201], "--domain"),
        (["--domain", ""], "--domain"),
        ([*DOMAIN, "--base", "b" * 65], "--base"),
        ([*DOMAIN, "--name", "a"], "--name"),
        ([*DOMAIN, "--family", "gpt2"], "--family"),
        ([*DOMAIN, "--safetensors"], "--safetensors"),
        ([*DOMAIN, "--to", "peft"], "--to"),
        ([*DOMAIN, "--family", "bert"], "--family"),
        (["--to", "adapterhub", *DOMAIN], "--domain"),
        (["--to", "adapterhub", "--base", "b"], "--base"),
        (["--to", "adapterhub", "--sample", "s.txt"], "--sample"),
    ],
)
def test_usage_errors(command: Soup, tmp_path: Path, options: list[str], named: str) -> None:
    assert named in refused(command("convert", FIXTURES / "gpt2/seq_bn", tmp_path / "a", *options), 2)
    assert not (tmp_path / "a").exists()


# --- places ---------------------------------------------------------------------------------------


def test_a_target_that_is_there(command: Soup, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "mine.txt").write_text("kept")
    ours = ("convert", FIXTURES / "gpt2/par_bn", tmp_path / "a", *DOMAIN)
    back = ("convert", tmp_path / "a", tmp_path / "b", "--to", "adapterhub")
    assert "--replace" in refused(command(*ours))
    assert "is not replaced" in refused(command(*ours, "--replace"))
    assert left_in(tmp_path / "a") == ["mine.txt"]
    (tmp_path / "a" / "mine.txt").unlink()
    done(command(*ours))
    done(command(*back))
    refused(command(*back))
    done(command(*back, "--replace"))
    assert left_in(tmp_path) == ["a", "b"]


@pytest.mark.parametrize("target", [".", "..", "inside", "../source"])
def test_the_source_is_never_replaced(command: Soup, tmp_path: Path, target: str) -> None:
    source = shutil.copytree(FIXTURES / "gpt2/par_bn", tmp_path / "source")
    files_before = {path.name: path.read_bytes() for path in source.iterdir()}
    assert "is inside the other" in refused(command("convert", source, source / target, *DOMAIN, "--replace"))
    assert {path.name: path.read_bytes() for path in source.iterdir()} == files_before


def test_a_source_that_is_none(command: Soup, tmp_path: Path) -> None:
    assert command("convert", tmp_path / "none", tmp_path / "a", *DOMAIN)[0] == 1
    assert command("convert", FIXTURES / "gpt2/par_bn/adapter_config.json", tmp_path / "a", *DOMAIN)[0] == 1
    (tmp_path / "empty").mkdir()
    assert "pytorch_adapter.bin" in refused(command("convert", tmp_path / "empty", tmp_path / "a", *DOMAIN))
    assert command("convert", tmp_path / "empty", tmp_path / "a", "--to", "adapterhub")[0] == 1


# --- to adapter hub -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("family", "kind", "options"), [("gpt2", "seq_bn", []), ("llama", "double_seq_bn", ["--safetensors"])]
)
def test_there_and_back(command: Soup, tmp_path: Path, family: str, kind: str, options: list[str]) -> None:
    source = FIXTURES / family / kind
    assert command("convert", source, tmp_path / "ours", *DOMAIN)[0] == 0
    code, out, err = command("convert", tmp_path / "ours", tmp_path / "back", "--to", "adapterhub", *options)
    assert (code, out) == (0, f"{tmp_path / 'back'}\n")
    assert "'US law'" in err
    assert ("use_safetensors=True" in err) == bool(options)
    weights = "adapter.safetensors" if options else "pytorch_adapter.bin"
    assert left_in(tmp_path / "back") == sorted(["adapter_config.json", weights])
    original, restored = read_checkpoint(source), read_checkpoint(tmp_path / "back")
    assert (restored.config, restored.name, restored.model_type, restored.model_name) == (
        original.config,
        original.name,
        original.model_type,
        original.model_name,
    )
    assert same(restored.tensors, original.tensors)


def ours(folder: Path, config: BottleneckConfig) -> Path:
    """A directory of ours that no checkpoint stands behind."""
    base = BaseShape(
        fingerprint="sha256:" + "0" * 64, model_type="gpt2", hidden_size=16, num_layers=2, context=64, vocab_size=300
    )
    tensors = {name: torch.ones(shape) for name, shape in expected_tensors(config, base).items()}
    write_directory(folder, AdapterContents(config=config, domain="law", weights=save_tensors(tensors)))
    return folder


def test_one_of_ours_needs_the_family(command: Soup, tmp_path: Path) -> None:
    source = ours(tmp_path / "a", BottleneckConfig(structure="pfeiffer", bottleneck=3, activation="gelu"))
    assert "--family" in refused(command("convert", source, tmp_path / "my law.v2", "--to", "adapterhub"), 2)
    out, _ = done(
        command("convert", source, tmp_path / "my law.v2", "--to", "adapterhub", "--family", "mistral", "--json")
    )
    assert json.loads(out)["name"] == "my_law_v2"
    checkpoint = read_checkpoint(tmp_path / "my law.v2")
    assert (checkpoint.name, checkpoint.model_type, checkpoint.model_name) == ("my_law_v2", "mistral", None)
    done(command("convert", source, tmp_path / "b", "--to", "adapterhub", "--family", "gpt2", "--name", "law"))
    assert read_checkpoint(tmp_path / "b").name == "law"


def test_what_it_cannot_express_is_incompatible(command: Soup, tmp_path: Path) -> None:
    source = ours(tmp_path / "a", BottleneckConfig(structure="houlsby", bottleneck=3, activation="gelu"))
    assert "LayerNorms" in refused(
        command("convert", source, tmp_path / "b", "--to", "adapterhub", "--family", "gpt2"), 3
    )
    assert left_in(tmp_path) == ["a"]


def test_a_peft_folder_is_converted(command: Soup, tmp_path: Path) -> None:
    source = tmp_path / "lora"
    source.mkdir()
    prefix = "base_model.model.transformer.h.0.attn.c_attn"
    tensors = {f"{prefix}.lora_A.weight": torch.ones(2, 16), f"{prefix}.lora_B.weight": torch.ones(48, 2)}
    (source / "adapter_model.safetensors").write_bytes(save_tensors(tensors))
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["c_attn"]}
    (source / "adapter_config.json").write_text(json.dumps(config))
    assert "'lora'" in refused(command("convert", source, tmp_path / "b", "--to", "adapterhub", "--family", "gpt2"))
    assert "is an adapter directory already" in refused(command("convert", source, tmp_path / "b", *DOMAIN))


def test_a_checkpoint_to_a_checkpoint(command: Soup, tmp_path: Path) -> None:
    assert "--to soup" in refused(command("convert", FIXTURES / "gpt2/par_bn", tmp_path / "a", "--to", "adapterhub"))


def test_it_does_not_load_torch_for_usage_errors(
    command: Soup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "registry.formats.adapterhub", None)  # importing it would fail
    assert command("convert", FIXTURES / "gpt2/par_bn", tmp_path / "a", *DOMAIN, "--name", "x")[0] == 2


# --- export ---------------------------------------------------------------------------------------


WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"
IDS = torch.tensor([[0, 30, 31, 32, 33]])
LLAMA = {"id": "tiny", "fingerprint": "sha256:" + "1" * 64, "architecture": {"model_type": "llama"}}
"""A server's answer for a base model."""


@pytest.fixture(scope="module")
def stocked(world: World) -> World:
    push_lora(
        world, "acme/law", seed=1, sample={"texts": [f"Contract {n} was void for want of it." for n in range(25)]}
    )
    push_lora(world, "acme/news", seed=2)
    recipe = {"ingredients": [{"ref": "acme/law"}, {"ref": "acme/news"}]}
    assert world.client.post("/v1/soups", json={"recipe": recipe, "name": "acme/both", "wait": 60}).status_code == 201
    world.push("acme/pfeiffer", seed=3)
    return world


def logits(base: LoadedBase, folder: Path) -> torch.Tensor:
    """The logits of PEFT's model of a directory."""
    with warnings.catch_warnings(), torch.inference_mode():
        warnings.simplefilter("ignore")
        output: torch.Tensor = peft.PeftModel.from_pretrained(copy.deepcopy(base.model), str(folder)).eval()(IDS).logits
    return output


@pytest.mark.parametrize("name", ["law", "both"])
def test_engines_get_one_rank_and_one_scale_that_compute_the_same(
    soup: Soup, stocked: World, gpt2: LoadedBase, tmp_path: Path, name: str
) -> None:
    for program in ("peft", "vllm", "lorax"):
        code, out, err = soup("export", f"acme/{name}@1", tmp_path / program, f"--{program}")
        assert (code, out) == (0, f"{tmp_path / program}\n"), err
        assert sorted(path.name for path in (tmp_path / program).iterdir()) == ["README.md", CONFIG, WEIGHTS]
    config = json.loads((tmp_path / "vllm" / CONFIG).read_text())
    tensors = load_file(tmp_path / "vllm" / WEIGHTS)
    assert (config["rank_pattern"], config["alpha_pattern"]) == ({}, {})
    assert {tensor.shape[0] for key, tensor in tensors.items() if "lora_A" in key} == {config["r"]}
    assert (tmp_path / "lorax" / WEIGHTS).read_bytes() == (tmp_path / "vllm" / WEIGHTS).read_bytes()
    torch.testing.assert_close(logits(gpt2, tmp_path / "vllm"), logits(gpt2, tmp_path / "peft"), atol=1e-5, rtol=1e-5)


def bottleneck_folder(folder: Path, **config: Any) -> AdapterDirectory:
    """The directory of a bottleneck of a tiny Llama."""
    fields = {"structure": "bapna_firat", "bottleneck": 9, "activation": "relu", **config}
    bottleneck = BottleneckConfig.model_validate(fields)
    shape = BaseShape(
        fingerprint=LLAMA["fingerprint"], model_type="llama", hidden_size=8, num_layers=2, context=8, vocab_size=9
    )
    write_directory(
        folder,
        AdapterContents(
            config=bottleneck,
            weights=save_tensors(drawn(bottleneck, shape)),
            domain="law",
            base_model="tiny",
            base_fingerprint=shape.fingerprint,
        ),
    )
    return read_directory(folder)


def test_vllm_gets_a_bottleneck_as_a_lora(tmp_path: Path) -> None:
    folder = bottleneck_folder(tmp_path / "stored")
    files = exported(folder, "vllm", name="acme/law", base_model={"tiny": LLAMA}.__getitem__)
    assert sorted(files) == ["README.md", CONFIG, WEIGHTS]
    config = json.loads(files[CONFIG])
    assert (config["peft_type"], config["r"], config["rank_pattern"]) == ("LORA", 10, {})
    assert {target.rpartition(".")[2] for target in config["target_modules"]} == {
        "bapna_firat_relu_down",
        "bapna_firat_relu_up",
    }
    place_files(tmp_path / "out", files)
    assert isinstance(read_directory(tmp_path / "out").config, LoraConfig)
    assert command_line(folder, "vllm", "out", "law") == (
        "VLLM_PLUGINS=adaptersoup SOUP_VLLM_BOTTLENECKS=bapna_firat_relu vllm serve tiny "
        "--enable-lora --max-lora-rank 16 --lora-modules law=out"
    )


def test_a_bottleneck_wider_than_vllms_ranks_is_refused(tmp_path: Path) -> None:
    folder = bottleneck_folder(tmp_path / "stored", bottleneck=512)
    with pytest.raises(
        Incompatible, match="of rank 512 at most, and this bottleneck of width 512 becomes one of rank 513: cook"
    ):
        exported(folder, "vllm", name="acme/law", base_model={"tiny": LLAMA}.__getitem__)


def test_what_it_says_of_loading(soup: Soup, stocked: World, tmp_path: Path) -> None:
    report = json.loads(soup("export", "acme/law", tmp_path / "a b", "--vllm", "--json")[1])
    assert report["load"].startswith("vllm serve tiny --enable-lora --max-lora-rank 8 --lora-modules 'law=")
    assert (report["files"], report["path"]) == (["README.md", CONFIG, WEIGHTS], str(tmp_path / "a b"))


@pytest.mark.parametrize("name", ["law", "both"])
def test_llama_cpp_gets_one_file(soup: Soup, stocked: World, tmp_path: Path, name: str) -> None:
    to = tmp_path / "out"
    code, _, err = soup("export", f"acme/{name}@1", to, "--llamacpp")
    assert (code, f"llama-server --model BASE.gguf --lora {to}/adapter_model.gguf over tiny" in err) == (0, True), err
    assert soup("export", f"acme/{name}", to, "--llamacpp", "--force")[0] == 0
    assert sorted(path.name for path in to.iterdir()) == ["README.md", "adapter_model.gguf"]


def test_what_llama_cpp_needs_is_asked_for_before_anything_is_pulled(
    soup: Soup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "gguf", None)
    monkeypatch.delitem(sys.modules, "registry.adapters.lora_gguf", raising=False)
    err = refused(soup("export", "acme/nothing", tmp_path / "out", "--llamacpp"))
    assert err == "Error: `soup export --llamacpp` needs gguf: pip install 'adaptersoup[gguf]'.\n"


def test_a_base_model_that_is_no_longer_the_adapters_is_refused(soup: Soup, stocked: World, tmp_path: Path) -> None:
    assert soup("pull", "acme/law", tmp_path / "law")[0] == 0
    folder = read_directory(tmp_path / "law")
    description = stocked.client.get(f"/v1/models/{stocked.base_id}").json()
    for change, kind, says in (
        ({"fingerprint": "sha256:" + "0" * 64}, Incompatible, "'tiny' now has fingerprint sha256:0000"),
        (
            {"architecture": None},
            Unavailable,
            "does not describe the architecture of 'tiny'",
        ),  # of a server before this one
    ):
        with pytest.raises(kind, match=says):
            exported(folder, "llamacpp", name="acme/law", base_model=lambda _, change=change: description | change)


def test_peft_gets_the_bytes_that_were_pushed(soup: Soup, stocked: World, tmp_path: Path) -> None:
    assert soup("export", "acme/law", tmp_path / "law", "--peft")[0] == 0
    assert (tmp_path / "law" / WEIGHTS).read_bytes() == lora_weights(stocked, seed=1)
    assert "is not empty" in refused(soup("export", "acme/law", tmp_path / "law", "--peft"))
    assert soup("export", "acme/news", tmp_path / "law", "--peft", "--force")[0] == 0
    assert (tmp_path / "law" / WEIGHTS).read_bytes() == lora_weights(stocked, seed=2)


@pytest.mark.parametrize(
    ("ref", "flags", "code", "says"),
    [
        ("acme/pfeiffer", ["--vllm"], 3, "and this one is of the family 'gpt2'"),
        ("acme/pfeiffer", ["--lorax"], 3, "LoRAX loads LoRAs that are not pruned, and this adapter is of the kind"),
        ("acme/pfeiffer", ["--peft"], 3, "PEFT loads LoRAs and prefixes that are not pruned"),
        ("acme/pfeiffer", ["--llamacpp"], 3, "llama.cpp loads LoRAs that are not pruned, and this adapter"),
        ("acme/law", ["--peft", "--vllm"], 2, "Name one program"),
        ("acme/law", [], 2, "Name one program"),
        ("acme/nothing", ["--peft"], 1, "There is no adapter acme/nothing"),
    ],
)
def test_refusals(soup: Soup, stocked: World, tmp_path: Path, ref: str, flags: list[str], code: int, says: str) -> None:
    err = refused(soup("export", ref, tmp_path / "out", *flags), code)
    assert says in " ".join(err.replace("│", " ").split())
    assert list(tmp_path.iterdir()) == []


def test_a_lora_that_is_even_keeps_its_tensors() -> None:
    even = {"method": "lora", "groups": [{"targets": ["a.q", "a.v"], "rank": 2, "alpha": 4}], "rslora": True}
    assert is_uniform(LoraConfig.model_validate(even))
    uneven = LoraConfig.model_validate(
        {
            "method": "lora",
            "groups": [{"targets": ["a.q"], "rank": 1, "alpha": 3}, {"targets": ["a.v"], "rank": 2, "alpha": 2}],
        }
    )
    names = [f"base_model.model.a.{module}.lora_{factor}.weight" for module in "qv" for factor in "AB"]
    shapes = [(1, 5), (4, 1), (2, 5), (4, 2)]
    tensors = {name: torch.rand(shape, dtype=torch.bfloat16) for name, shape in zip(names, shapes, strict=True)}
    config, uniform_tensors = uniform(uneven, tensors)
    assert is_uniform(config)
    assert [tuple(uniform_tensors[name].shape) for name in names] == [(2, 5), (4, 2), (2, 5), (4, 2)]
    assert torch.equal(
        uniform_tensors[names[1]] @ uniform_tensors[names[0]], 3 * tensors[names[1]].float() @ tensors[names[0]].float()
    )
    assert torch.equal(uniform_tensors[names[3]], tensors[names[3]].float())


def cached(soup: Soup, into: Path, commit: str) -> Path:
    """The cache of the hub's client in a folder, with one repository of PEFT's files at a commit; gives its files."""
    assert soup("export", "acme/news", into / "news", "--peft")[0] == 0
    repository = into / "cache" / "models--Some--News-LoRA"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(commit)
    (repository / "snapshots").mkdir()
    return (into / "news").rename(repository / "snapshots" / commit)


@pytest.mark.parametrize(
    "says",
    [
        None,
        "{}",
        '{"provenance": {"training": {"imported_from": "Other/Work@1", "steps": 5}}}',
        '{"provenance": {"training": []}}',
        "{",
    ],
)
def test_what_is_downloaded_is_from_where_it_was_downloaded(
    soup: Soup, stocked: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: str | None
) -> None:
    """Whatever it says itself; the hub's client is offline here, as all tests are: it takes what its cache has."""
    commit = "ab" * 20
    files = cached(soup, tmp_path, commit)
    (files / "evil.bin").write_bytes(b"\x80\x04.")
    if says is not None:
        (files / "soup.json").write_text(says)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    name = f"acme/news-{len(says or '')}"
    code, out, err = soup("push", "hub:Some/News-LoRA", "--name", name, "--domain", "news")
    if says is not None and (says.endswith("[]}}") or says == "{"):
        assert (code, out, "soup.json" in err) == (1, "", True)  # what cannot be read is refused, and not made good
        return
    assert (code, out) == (0, f"{name}@1\n"), err
    row = stocked.client.get(f"/v1/adapters/{name}").json()
    more = {"steps": 5} if "steps" in (says or "") else {}
    assert row["provenance"]["training"] == {"imported_from": f"Some/News-LoRA@{commit}", **more}
    assert row["digest"] == stocked.client.get("/v1/adapters/acme/news").json()["digest"]
    assert (files / "soup.json").exists() == (says is not None)  # the cache stays as it was
    assert says is None or (files / "soup.json").read_text() == says
