"""PEFT directories, with the real `peft`: the same logits both ways, whatever the family and option; our own too."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from torch import Tensor

from registry.adapters import attached, from_tensors
from registry.adapters.weights import adapter_digest, check_weights, load_tensors, save_tensors
from registry.base_model.loading import LoadedBase
from registry.errors import InvalidManifest, InvalidWeights, NotFound, UnknownMethod
from registry.formats import (
    CONFIG_FILE,
    EMBEDDINGS_FILE,
    SOUP_FILE,
    WEIGHTS_FILE,
    AdapterContents,
    AdapterDirectory,
    read_directory,
    write_directory,
)
from registry.formats.peft.lora import adapter_config
from registry.formats.peft.prefix import prefix_config
from registry.spec import (
    Card,
    PrefixConfig,
    Provenance,
)
from tests.tiny_models import CAUSAL

SHORT = {"gpt2": ["c_attn", "c_fc"], "gpt_neox": ["query_key_value", "dense_4h_to_h"], "opt": ["q_proj", "fc1"]}
BLOCKS = {"gpt2": "h", "gpt_neox": "layers", "opt": "layers"}
HEX = "sha256:" + "a" * 64


ON_BASES = ("gpt2", "llama")


def fresh(base: LoadedBase) -> Any:
    """Another copy of the base model, for `peft` to work on."""
    return copy.deepcopy(base.model)


@dataclass
class Trained:
    """A PEFT directory, and the logits `peft` has with it."""

    folder: Path
    logits: Tensor


def logits_of(model: Any) -> Tensor:
    with torch.inference_mode():
        return model(input_ids=torch.arange(1, 13).reshape(2, 6)).logits


def trained(base: LoadedBase, folder: Path, *, dtype: torch.dtype = torch.float32, **options: Any) -> Trained:
    """The folder that `peft` writes for a LoRA whose B is not zero, and the logits with it."""
    model_type = base.shape.model_type
    options = {"target_modules": SHORT.get(model_type, ["q_proj", "down_proj"]), "r": 3, "lora_alpha": 5, **options}
    config = peft.LoraConfig(task_type="CAUSAL_LM", fan_in_fan_out=model_type == "gpt2", **options)
    model = peft.get_peft_model(fresh(base), config)
    generator = torch.Generator().manual_seed(1)
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            parameter.data = (torch.randn(parameter.shape, generator=generator) * 0.3).to(dtype)
    model.save_pretrained(str(folder))
    return Trained(folder, of_peft(base, folder))  # as loaded: saving sorts patterns, and the first that matches counts


def ours(base: LoadedBase, folder: AdapterDirectory) -> Tensor:
    with attached(base.model, from_tensors(folder.config, base.shape, load_tensors(folder.weights.read_bytes()))):
        return logits_of(base.model)


def of_peft(base: LoadedBase, folder: Path) -> Tensor:
    return logits_of(peft.PeftModel.from_pretrained(fresh(base), folder, autocast_adapter_dtype=True).eval())


def digest(base: LoadedBase, folder: AdapterDirectory) -> str:
    data = folder.weights.read_bytes()
    check_weights(data, folder.config, base.shape, max_bytes=10**9)
    return adapter_digest(base.shape.fingerprint, folder.config, load_tensors(data))


OPTIONS = ("plain", "rslora", "patterns", "regex", "layers", "one layer", "all-linear", "exclude")


def options_of(base: LoadedBase) -> dict[str, dict[str, Any]]:
    """Every way to say which modules, ranks and alphas there are."""
    model_type = base.shape.model_type
    first, second = SHORT.get(model_type, ["q_proj", "down_proj"])
    block = BLOCKS.get(model_type, "layers")
    return {
        "plain": {},
        "rslora": {"use_rslora": True, "r": 5},
        "patterns": {
            "rank_pattern": {first: 2, rf"{block}\.1\..*{second}": 4},
            "alpha_pattern": {rf"{block}\.[1-9]\..*": 7, first: 2},
        },
        "regex": {"target_modules": rf".*{block}\.1\..*({first}|{second})"},
        "layers": {"layers_to_transform": [1], "layers_pattern": block},
        "one layer": {"layers_to_transform": 0},
        "all-linear": {"target_modules": "all-linear", "r": 2},
        "exclude": {"exclude_modules": rf".*\.0\..*{second}"},
    }


def same(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, atol=1e-4, rtol=1e-5)  # PEFT adds W x and s B A x in another order


pytestmark = pytest.mark.filterwarnings(
    "ignore::UserWarning:peft", "ignore:.*is_gradient_checkpointing.*:FutureWarning"
)


@pytest.mark.parametrize(
    ("family", "option"),
    [
        *[("gpt2", option) for option in OPTIONS],
        *[(family, "patterns") for family in CAUSAL if family != "gpt2"],
        ("llama", "all-linear"),
        ("gpt_neox", "all-linear"),
        ("llama", "regex"),
    ],
)
def test_the_logits_are_pefts_there_and_back(
    bases: Callable[[str], LoadedBase], tmp_path: Path, family: str, option: str
) -> None:
    base = bases(family)
    written = trained(base, tmp_path / "peft", **options_of(base)[option])
    folder = read_directory(written.folder)
    assert (written.logits - logits_of(base.model)).abs().max() > 1e-3
    same(ours(base, folder), written.logits)

    rewritten = write_directory(
        tmp_path / "ours",
        AdapterContents(
            config=folder.config,
            domain="law",
            weights=folder.weights.read_bytes(),
            base_model="tiny",
            base_fingerprint=base.shape.fingerprint,
            shape=base.shape,
        ),
    )
    assert digest(base, rewritten) == digest(base, folder)
    same(of_peft(base, rewritten.path), written.logits)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_files(gpt2: LoadedBase, tmp_path: Path, dtype: torch.dtype) -> None:
    written = trained(gpt2, tmp_path / "peft", dtype=dtype)
    folder = read_directory(written.folder)
    assert {str(t.dtype) for t in load_tensors(folder.weights.read_bytes()).values()} == {str(dtype)}
    same(ours(gpt2, folder), written.logits)
    same(of_peft(gpt2, written.folder), written.logits)


def test_a_head_of_its_own_may_have_a_lora(bases: Callable[[str], LoadedBase], tmp_path: Path) -> None:
    base = bases("gpt_neox")
    written = trained(base, tmp_path / "peft", target_modules=["embed_out", "dense"])
    same(ours(base, read_directory(written.folder)), written.logits)


@pytest.fixture(scope="module")
def plain(gpt2: LoadedBase, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(gpt2, tmp_path_factory.mktemp("plain") / "peft").folder


# --- the directory --------------------------------------------------------------------------------


@pytest.fixture
def folder(plain: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(plain, tmp_path / "peft"))


def test_as_it_lies_on_disk_it_names_its_base_and_no_domain(folder: Path, gpt2: LoadedBase) -> None:
    read = read_directory(folder)
    assert (read.domain, read.base_model, read.recorded_base) == (None, None, gpt2.entry.source)
    assert read.card == Card(tags=("lora", "transformers"))  # peft's unfilled card has no text
    notes = {"domain": "law", "base_model": "small", "provenance": {"init_hash": HEX, "init_source": "declared"}}
    (folder / SOUP_FILE).write_text(json.dumps(notes))
    read = read_directory(folder)
    assert (read.domain, read.base_model, read.provenance.init_hash) == ("law", "small", HEX)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"domain": "law", "config": {}}', "config"),
        ("[]", "soup.json"),
        ("{", "broken"),
        ('{"domain": ""}', "domain"),
    ],
)
def test_a_soup_json_that_is_not_right(folder: Path, text: str, says: str) -> None:
    (folder / SOUP_FILE).write_text(text)
    with pytest.raises(InvalidManifest, match=says):
        read_directory(folder)


def test_pickled_weights_are_refused_with_what_to_do(folder: Path) -> None:
    (folder / WEIGHTS_FILE).rename(folder / "adapter_model.bin")
    with pytest.raises(NotFound, match=r"adapter_model\.bin is a pickle: load it with peft .*safe_serialization"):
        read_directory(folder)


def test_broken_weights_are_named_with_their_directory(folder: Path) -> None:
    for data in (b"", b"\x80\x04pickle", (folder / WEIGHTS_FILE).read_bytes()[:-1]):
        (folder / WEIGHTS_FILE).write_bytes(data)
        with pytest.raises(InvalidWeights, match="peft: The weights cannot be taken"):
            read_directory(folder)


def test_embeddings_need_soup_json(folder: Path) -> None:
    (folder / EMBEDDINGS_FILE).write_bytes(b"x")
    with pytest.raises(InvalidManifest, match=r"soup\.json does not say what made"):
        read_directory(folder)
    (folder / SOUP_FILE).write_text(json.dumps({"embeddings": {"encoder": HEX, "unit": "sentence"}}))
    assert read_directory(folder).embeddings is not None


def test_writing_keeps_what_is_known(folder: Path, tmp_path: Path) -> None:
    read = read_directory(folder)
    provenance = Provenance(init_hash=HEX, init_source="declared", training={"lr": 0.1})
    rewritten = write_directory(
        tmp_path / "again",
        AdapterContents(
            config=read.config,
            domain="law",
            weights=read.weights.read_bytes(),
            base_model="small",
            provenance=provenance,
            texts=["one"],
            card=Card(description="Words", tags=("a",)),
        ),
    )
    assert (rewritten.config, rewritten.provenance, rewritten.domain) == (read.config, provenance, "law")
    assert (rewritten.card.description, rewritten.card.tags) == ("Words", ("a",))
    assert json.loads((rewritten.path / CONFIG_FILE).read_text())["base_model_name_or_path"] == "small"
    assert "config" not in json.loads((rewritten.path / SOUP_FILE).read_text())


# --- prefixes ---------------------------------------------------------------------------------------

PREFIX = PrefixConfig(length=4)


def trained_prefix(base: LoadedBase, folder: Path, **options: Any) -> Tensor:
    """Have `peft` write a prefix into `folder`; returns the logits it has with it."""
    torch.manual_seed(0)
    config = peft.PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=PREFIX.length, **options)
    model = peft.get_peft_model(fresh(base), config).eval()
    model.save_pretrained(str(folder))
    return logits_of(model)


@pytest.mark.parametrize("projection", [False, True], ids=["plain", "projection"])
def test_the_logits_of_a_prefix_are_pefts_there_and_back(base: LoadedBase, tmp_path: Path, projection: bool) -> None:
    options = {"prefix_projection": True, "encoder_hidden_size": 7} if projection else {}
    expected = trained_prefix(base, tmp_path / "peft", **options)
    folder = read_directory(tmp_path / "peft")
    assert folder.config == PREFIX
    weights = folder.weights.read_bytes()
    check_weights(weights, folder.config, base.shape, max_bytes=10**7)
    with attached(base.model, from_tensors(folder.config, base.shape, load_tensors(weights))):
        same(logits_of(base.model), expected)
    for name, shape in (("short", None), ("whole", base.shape)):
        rewritten = write_directory(
            tmp_path / name, AdapterContents(config=folder.config, domain=None, weights=weights, shape=shape)
        )
        assert rewritten.config == folder.config
        same(of_peft(base, rewritten.path), expected)


def test_the_files_are_those_peft_writes(base: LoadedBase, tmp_path: Path) -> None:
    trained_prefix(base, tmp_path / "peft")
    theirs = read_directory(tmp_path / "peft")
    weights = theirs.weights.read_bytes()
    tensors = load_tensors(weights)
    assert save_tensors(tensors, metadata={"format": "pt"}) == weights, "byte for byte"
    ours = write_directory(
        tmp_path / "ours",
        AdapterContents(
            config=theirs.config,
            domain="law",
            weights=save_tensors(tensors),
            shape=base.shape,
            base_model=base.entry.source,
        ),
    )
    read = [peft.PrefixTuningConfig.from_pretrained(folder).to_dict() for folder in (theirs.path, ours.path)]
    del read[0]["encoder_hidden_size"], read[1]["encoder_hidden_size"]  # of a projection that there is none of
    del read[0]["peft_version"], read[1]["peft_version"]
    assert read[0] == read[1]


SAID = {"peft_type": "PREFIX_TUNING", "task_type": "CAUSAL_LM", "num_virtual_tokens": 4}
TENSORS: dict[str, tuple[int, ...]] = {"prompt_embeddings": (4, 128)}


# --- refused prefixes -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "tensors", "kind", "says"),
    [
        *(
            (change, TENSORS, UnknownMethod, says)
            for change, says in (
                ({"num_transformer_submodules": 2}, "encoder-decoder"),
                ({"task_type": "SEQ_CLS"}, "task_type 'SEQ_CLS'"),
                ({"modules_to_save": ["score"]}, "trained copies of whole modules"),
                ({"a_new_field": 3}, "'a_new_field' is not known here"),
            )
        ),
        *(
            (change, TENSORS, InvalidManifest, says)
            for change, says in (
                ({"num_virtual_tokens": 5}, "4 virtual tokens in the weights and 5 in the configuration"),
                ({"num_layers": 3, "token_dim": 32}, "3 layers of keys and values of 32 are 192 columns, not 128"),
                ({"token_dim": 32, "num_attention_heads": 5}, "token_dim 32 is no multiple of 5 heads"),
                ({"num_layers": "two"}, "num_layers is 'two', not a whole number"),
                ({"num_layers": True}, "num_layers is 'True', not a whole number"),
                ({"num_layers": 10**3000, "token_dim": 10**3000}, "0', not a whole number from 1 to 1000000"),
                ({"token_dim": -3}, "token_dim is '-3', not a whole number"),
            )
        ),
        ({}, {}, InvalidManifest, "'prompt_embeddings' is missing"),
        ({}, {"prompt_embeddings": (4,)}, InvalidManifest, r"is of shape \[4\]"),
        ({}, TENSORS | {"x": (1,)}, InvalidManifest, "'x' is not expected in a prefix"),
        *(
            ({"num_virtual_tokens": None}, {"prompt_embeddings": (length, 128)}, InvalidManifest, says)
            for length, says in ((5000, "cannot be taken.*4096"), (0, "cannot be taken"))
        ),
    ],
)
def test_what_is_not_supported_or_wrong_is_named(
    change: dict[str, Any], tensors: Any, kind: type[Exception], says: str
) -> None:
    with pytest.raises(kind, match=says):
        adapter_config(SAID | change, tensors)


def test_everything_wrong_with_a_prefix_is_told_at_once() -> None:
    with pytest.raises(UnknownMethod, match="2 more problems") as caught:
        prefix_config(SAID | {"task_type": "QA", "num_virtual_tokens": 9}, TENSORS | {"x": (1,)})
    assert len(caught.value.problems) == 3
