"""Adapters that people bring, one structure each: as directories on disk, and their mixture computed by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import peft
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from registry.adapters import attached, create, from_tensors, paper_config
from registry.adapters.masks import without_masks
from registry.adapters.weights import load_tensors, save_tensors
from registry.base_model import LoadedBase
from registry.formats import AdapterContents, read_directory, write_directory
from registry.names import digest_of
from registry.spec import AdapterConfig, BankConfig, Provenance
from tests.registry.pruned_adapters import sparse
from tests.service.passages import passages
from tests.service.servers import CONFIG, strange_weights
from training.data import Data
from training.hyperparameters import Hyperparameters
from training.inputs import TrainingInputs
from training.methods.lora_targets import lora_for
from training.trainer import Trained, train_adapter

INIT = Provenance(init_hash=digest_of("one start"), init_source="declared")
SPARSITY = {"kitchen": 0.25, "court": 0.5}
LORAS: dict[str, dict[str, Any]] = {
    "kitchen": {"r": 4, "lora_alpha": 8, "target_modules": ["attn.c_attn"]},
    "court": {"r": 2, "lora_alpha": 6, "target_modules": ["attn.c_attn", "mlp.c_fc"], "use_rslora": True},
}
"""Rank, scale and modules of each domain's LoRA differ, and so does what the scale means."""
KEPT = 20
"""Passages of each sample: as few as are taken."""
VALID = passages("kitchen", KEPT, seed=2)
Tensors = dict[str, Tensor]


def write_bottleneck(folder: Path, base: LoadedBase, domain: str, seed: int) -> None:
    """Of one start, which its maker declares."""
    weights = strange_weights(base.entry, seed)
    write_directory(folder, AdapterContents(config=CONFIG, domain=domain, weights=weights, provenance=INIT))


def write_stranger(folder: Path, base: LoadedBase, domain: str, seed: int) -> None:
    """From nobody knows where."""
    write_directory(folder, AdapterContents(config=CONFIG, domain=domain, weights=strange_weights(base.entry, seed)))


def write_pruned(folder: Path, base: LoadedBase, domain: str, seed: int) -> None:
    """Of one start, with masks and large random values, so that every entry that is left counts."""
    start = create(CONFIG, base.shape, seed=seed, init="linear").state_dict()
    config, tensors = sparse(CONFIG, seed, sparsity=SPARSITY[domain], tensors=start)
    contents = AdapterContents(config=config, domain=domain, weights=save_tensors(tensors), provenance=INIT)
    write_directory(folder, contents)


def write_lora(folder: Path, base: LoadedBase, domain: str, seed: int) -> None:
    """Write an adapter as somebody trains it, by `peft`, from a seed that nobody wrote down."""
    torch.manual_seed(seed)
    config = peft.LoraConfig(fan_in_fan_out=True, task_type="CAUSAL_LM", **LORAS[domain])
    model: Any = peft.get_peft_model(AutoModelForCausalLM.from_pretrained(base.entry.source), config)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(folder)


def trained_bank(base: LoadedBase, kind: str) -> Trained:
    """A bank of three experts, trained on the kitchen for a few steps."""
    expert = lora_for(base.shape, rank=2, alpha=8.0) if kind == "lora" else paper_config("pfeiffer", bottleneck=4)
    recipe = Hyperparameters(steps=6, batch=4, block=32, learning_rate=2e-2, evaluations=2)
    data = Data(passages("kitchen", 40), VALID)
    return train_adapter(base, TrainingInputs(BankConfig(expert=expert, experts=3), data, recipe))


def write_bank(kind: str) -> Callable[[Path, LoadedBase, str, int], None]:
    def write(folder: Path, base: LoadedBase, domain: str, _seed: int) -> None:
        bank = trained_bank(base, kind)
        bank.write(folder, base, domain=domain, base_id="tiny", passages=VALID)
        bank.merged().write(folder.with_name("merged"), base, domain=domain)

    return write


# --- mixtures by hand: nothing of the registry's mixing computes them ------------------------------


def logits_of(base: LoadedBase, config: AdapterConfig, tensors: Tensors, ids: Tensor) -> Tensor:
    with torch.no_grad(), attached(base.model, from_tensors(config, base.shape, tensors)):
        logits: Tensor = base.model(ids).logits[0]
    return logits


def read(folder: Path) -> Tensors:
    return without_masks(load_tensors(read_directory(folder).weights.read_bytes()))


def averaged(base: LoadedBase, folders: Sequence[Path], shares: Sequence[float], ids: Tensor) -> Tensor:
    """The weighted mean of each tensor; what is pruned is zero."""
    adapters = [read(folder) for folder in folders]
    mean = {
        name: sum(share * adapter[name] for share, adapter in zip(shares, adapters, strict=True))
        for name in adapters[0]
    }
    return logits_of(base, CONFIG, mean, ids)  # type: ignore[arg-type]


def side_by_side(base: LoadedBase, folders: Sequence[Path], shares: Sequence[float], ids: Tensor) -> Tensor:
    """One adapter as wide as all: down-projections below each other, weighted up-projections beside each other."""
    adapters = [read(folder) for folder in folders]
    wide: Tensors = {}
    for name in adapters[0]:
        if ".down." in name:
            wide[name] = torch.cat([adapter[name] for adapter in adapters])
        else:
            weighted = [share * adapter[name] for share, adapter in zip(shares, adapters, strict=True)]
            wide[name] = torch.cat(weighted, dim=1) if name.endswith("weight") else sum(weighted)  # type: ignore[assignment]
    return logits_of(base, CONFIG.model_copy(update={"bottleneck": len(adapters) * CONFIG.bottleneck}), wide, ids)


def updated(base: LoadedBase, folders: Sequence[Path], shares: Sequence[float], ids: Tensor) -> Tensor:
    """The base with the weighted updates in its weights, each merged by `peft`."""
    model = AutoModelForCausalLM.from_pretrained(base.entry.source)
    base_weights = {name: value.clone() for name, value in model.state_dict().items()}
    total = dict(base_weights)
    for folder, share in zip(folders, shares, strict=True):
        fresh = AutoModelForCausalLM.from_pretrained(base.entry.source)
        alone: Any = peft.PeftModel.from_pretrained(fresh, str(folder)).merge_and_unload()
        total = {name: total[name] + share * (alone.state_dict()[name] - base_weights[name]) for name in total}
    model.load_state_dict(total)
    with torch.no_grad():
        return model.eval()(ids).logits[0]


def of_its_merge(base: LoadedBase, folders: Sequence[Path], _shares: Sequence[float], ids: Tensor) -> Tensor:
    """The adapter that the training made of the bank."""
    return loaded(base, folders[0].with_name("merged"), ids)


def loaded(base: LoadedBase, folder: Path, ids: Tensor) -> Tensor:
    """The logits of the base with the adapter of a directory, attached by this project."""
    adapter = read_directory(folder)
    return logits_of(base, adapter.config, load_tensors(adapter.weights.read_bytes()), ids)


def loaded_by_peft(base: LoadedBase, folder: Path, ids: Tensor) -> Tensor:
    """The logits of the base with the adapter of a directory, attached by `peft`, which knows nothing of us."""
    model: Any = peft.PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base.entry.source), str(folder))
    with torch.no_grad():
        logits: Tensor = model.eval()(ids).logits[0]
    return logits


# --- the structures --------------------------------------------------------------------------------

Mixture = Callable[[LoadedBase, Sequence[Path], Sequence[float], Tensor], Tensor]
"""(base, directories, shares, ids (1, time)) -> logits (time, vocabulary)."""


@dataclass(frozen=True)
class Structure:
    """How adapters are written, and what becomes of a recipe of them."""

    write: Callable[[Path, LoadedBase, str, int], None]
    mixing: dict[str, Any]
    by_hand: Mixture
    reason: str
    widths: tuple[list[int], int]
    """Of the ingredients, sorted, and of what is made of them."""
    init_source: str = "unknown"
    shares: dict[str, float] = field(default_factory=lambda: {"kitchen": 0.25, "court": 0.75})
    """By domain."""
    pulled: Callable[[LoadedBase, Path, Tensor], Tensor] = loaded
    selectable: bool = True
    makes: str = "soup"


AVERAGE = {"method": "average", "scale": "1", "assume_same_init": False}
CONCAT = {"method": "concat", "scale": "1"}
MERGE = {"mixing": {"method": "merge"}, "by_hand": of_its_merge, "shares": {"kitchen": 1.0}, "selectable": False}
STRUCTURES = {
    "bottleneck": Structure(write_bottleneck, AVERAGE, averaged, "average", ([4, 4], 4), "declared"),
    "stranger": Structure(write_stranger, CONCAT, side_by_side, "averaging was not possible", ([4, 4], 8)),
    "pruned": Structure(write_pruned, AVERAGE, averaged, "average", ([4, 4], 4), "declared"),
    "lora": Structure(
        write_lora,
        CONCAT,
        updated,
        "2 adapters by concat: LoRAs are mixed exactly, whatever they started from.",
        ([2, 4], 6),
        pulled=loaded_by_peft,
    ),
    "bank": Structure(
        write_bank("pfeiffer"),
        reason="the mean of its 3 experts",
        widths=([4], 4),
        init_source="trained_here",
        makes="adapter",
        **MERGE,
    ),
    "lora_bank": Structure(
        write_bank("lora"),
        reason="the mean of its 3 experts",
        widths=([2], 2),
        init_source="trained_here",
        makes="adapter",
        pulled=loaded_by_peft,
        **MERGE,
    ),
}
"""By name, which is also the namespace that they are pushed to."""
