"""PEFT's PREFIX_TUNING directories, with the real `peft`, both ways; and the folders of what only we can say."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from torch import Tensor

from registry.adapters import attached, create, expected_tensors, from_tensors, paper_config
from registry.adapters.weights import check_weights, load_tensors, save_tensors
from registry.base_model.loading import LoadedBase
from registry.errors import Incompatible, InvalidManifest, UnknownMethod
from registry.formats import CONFIG_FILE, SOUP_FILE, WEIGHTS_FILE, AdapterContents, read_directory, write_directory
from registry.formats.peft.lora import adapter_config
from registry.formats.peft.prefix import prefix_config
from registry.spec import (
    AdapterConfig,
    BankConfig,
    FusionConfig,
    HeadConfig,
    LoraConfig,
    LoraModule,
    PrefixConfig,
    Provenance,
    Pruned,
    UnionConfig,
)
from tests.tiny_models import CAUSAL

ON_BASES = CAUSAL
IDS = torch.arange(1, 13).reshape(2, 6)
LENGTH = 4
HEX = "sha256:" + "a" * 64
pytestmark = pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing.*:FutureWarning")


def logits_of(model: Any) -> Tensor:
    with torch.inference_mode():
        found: Tensor = model(input_ids=IDS).logits
    return found


def trained(base: LoadedBase, folder: Path, **options: Any) -> Tensor:
    """What `peft` writes into `folder`, and the logits it has with it."""
    torch.manual_seed(0)
    config = peft.PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=LENGTH, **options)
    model = peft.get_peft_model(copy.deepcopy(base.model), config).eval()
    model.save_pretrained(str(folder))
    return logits_of(model)


def of_peft(base: LoadedBase, folder: Path) -> Tensor:
    return logits_of(peft.PeftModel.from_pretrained(copy.deepcopy(base.model), folder).eval())


@pytest.mark.parametrize("projection", [False, True], ids=["plain", "projection"])
def test_the_logits_are_pefts_there_and_back(base: LoadedBase, tmp_path: Path, projection: bool) -> None:
    options = {"prefix_projection": True, "encoder_hidden_size": 7} if projection else {}
    wanted = trained(base, tmp_path / "peft", **options)
    folder = read_directory(tmp_path / "peft")
    assert folder.config == PrefixConfig(length=LENGTH)
    weights = folder.weights.read_bytes()
    check_weights(weights, folder.config, base.shape, max_bytes=10**7)
    with attached(base.model, from_tensors(folder.config, base.shape, load_tensors(weights))):
        torch.testing.assert_close(logits_of(base.model), wanted, rtol=0, atol=1e-5)
    for name, shape in (("short", None), ("whole", base.shape)):
        again = write_directory(
            tmp_path / name, AdapterContents(config=folder.config, domain=None, weights=weights, shape=shape)
        )
        assert again.config == folder.config
        torch.testing.assert_close(of_peft(base, again.path), wanted, rtol=0, atol=1e-5)


def test_the_files_are_those_peft_writes(base: LoadedBase, tmp_path: Path) -> None:
    trained(base, tmp_path / "peft")
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


def test_soup_json_says_what_pefts_file_cannot(gpt2: LoadedBase, tmp_path: Path) -> None:
    state = create(PrefixConfig(length=LENGTH), gpt2.shape, seed=0, init="linear").state_dict()
    provenance = Provenance(init_hash=HEX, init_source="trained_here", init_seed=3)
    folder = write_directory(
        tmp_path / "ours",
        AdapterContents(
            config=PrefixConfig(length=LENGTH),
            domain="law",
            weights=save_tensors(state),
            base_model="small",
            base_fingerprint=HEX,
            shape=gpt2.shape,
            provenance=provenance,
        ),
    )
    assert (folder.domain, folder.base_fingerprint, folder.provenance) == ("law", HEX, provenance)
    assert json.loads((folder.path / CONFIG_FILE).read_text())["peft_type"] == "PREFIX_TUNING"


SAID = {"peft_type": "PREFIX_TUNING", "task_type": "CAUSAL_LM", "num_virtual_tokens": 4}
TENSORS: dict[str, tuple[int, ...]] = {"prompt_embeddings": (4, 128)}


class TestRefused:
    @pytest.mark.parametrize(
        ("change", "says"),
        [
            ({"num_transformer_submodules": 2}, "encoder-decoder"),
            ({"task_type": "SEQ_CLS"}, "task_type 'SEQ_CLS'"),
            ({"modules_to_save": ["score"]}, "trained copies of whole modules"),
            ({"a_new_field": 3}, "'a_new_field' is not known here"),
        ],
    )
    def test_what_is_not_supported_is_named(self, change: dict[str, Any], says: str) -> None:
        with pytest.raises(UnknownMethod, match=says):
            adapter_config(SAID | change, TENSORS)

    @pytest.mark.parametrize(
        ("change", "tensors", "says"),
        [
            ({"num_virtual_tokens": 5}, TENSORS, "4 virtual tokens in the weights and 5 in the configuration"),
            ({"num_layers": 3, "token_dim": 32}, TENSORS, "3 layers of keys and values of 32 are 192 columns, not 128"),
            ({"token_dim": 32, "num_attention_heads": 5}, TENSORS, "token_dim 32 is no multiple of 5 heads"),
            ({"num_layers": "two"}, TENSORS, "num_layers is 'two', not a whole number"),
            ({"num_layers": True}, TENSORS, "num_layers is 'True', not a whole number"),
            ({"token_dim": -3}, TENSORS, "token_dim is '-3', not a whole number"),
            ({}, {}, "'prompt_embeddings' is missing"),
            ({}, {"prompt_embeddings": (4,)}, r"is of shape \[4\]"),
            ({}, TENSORS | {"x": (1,)}, "'x' is not expected in a prefix"),
            ({"num_virtual_tokens": None}, {"prompt_embeddings": (5000, 128)}, "cannot be taken.*4096"),
            ({"num_virtual_tokens": None}, {"prompt_embeddings": (0, 128)}, "cannot be taken"),
        ],
    )
    def test_what_is_wrong_is_named(self, change: dict[str, Any], tensors: Any, says: str) -> None:
        with pytest.raises(InvalidManifest, match=says):
            adapter_config(SAID | change, tensors)

    def test_everything_at_once(self) -> None:
        with pytest.raises(UnknownMethod, match="2 more problems") as found:
            prefix_config(SAID | {"task_type": "QA", "num_virtual_tokens": 9}, TENSORS | {"x": (1,)})
        assert len(found.value.problems) == 3

    def test_of_another_base_the_columns_are(self, bases, tmp_path: Path) -> None:
        trained(bases("gpt2"), tmp_path / "peft")
        folder = read_directory(tmp_path / "peft")
        with pytest.raises(Incompatible, match=r"prompt_embeddings has shape \[4, 128\], and \[4, 64\]"):
            check_weights(folder.weights.read_bytes(), folder.config, bases("llama").shape, max_bytes=10**7)


# --- what only we can say -------------------------------------------------------------------------

PATH = "transformer.h.0.mlp.c_fc"
PFEIFFER = paper_config("pfeiffer", bottleneck=3)
HEAD = HeadConfig(task="classification", labels=("no", "yes", "äh"))
OURS: dict[str, AdapterConfig] = {
    "head": HEAD,
    "mam": UnionConfig(members=(PrefixConfig(length=2), paper_config("parallel", bottleneck=3))),
    "lora + head": UnionConfig(members=(LoraConfig.of({PATH: LoraModule(2, 4.0)}), HEAD)),
    "fusion": FusionConfig(member=PFEIFFER, members=2),
    "adamix": BankConfig(expert=PFEIFFER, experts=3),
    "pruned lora": LoraConfig.of({PATH: LoraModule(2, 4.0)}).model_copy(
        update={"pruned": Pruned(score="random", sparsity=0.4, masked=128)}
    ),
}


@pytest.mark.parametrize("name", OURS)
def test_all_others_are_in_our_form(gpt2: LoadedBase, tmp_path: Path, name: str) -> None:
    config = OURS[name]
    tensors = {
        part: torch.zeros(size, dtype=torch.uint8 if part.endswith(".mask") else torch.float32)
        for part, size in expected_tensors(config, gpt2.shape).items()
    }
    with pytest.raises(InvalidManifest, match="needs its domain"):
        write_directory(tmp_path / "x", AdapterContents(config=config, domain=None, weights=save_tensors(tensors)))
    folder = write_directory(
        tmp_path / "ours", AdapterContents(config=config, domain="law", weights=save_tensors(tensors))
    )
    assert folder.config == config
    assert not (folder.path / SOUP_FILE).exists()
    assert "peft_type" not in json.loads((folder.path / CONFIG_FILE).read_text())
    assert set(load_tensors((folder.path / WEIGHTS_FILE).read_bytes())) == set(tensors)
