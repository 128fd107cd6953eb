"""The list of cells: two domains x three seeds of every variant, and the trainings that choose learning rates.

Called by `lm_adapters`. Stages depend on the results of earlier ones. First, learning rates are chosen on validation
text, with a seed that no variant has, one for each family of variants. Variants on a tenth of the data are separate
families, trained on a tenth. Then all variants are trained at their family's rate and scored on test text. Fusions come
last, because their members are adapters of the second stage.

A step is 4 blocks of 128 tokens, a cell 60 steps or 30,720 tokens. There are 286 cells, with 10.2 million tokens of
training and as many of scoring. That takes an hour at 4,000 and 10,000 tokens per second, the speed of two processes on
two slow cores.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from benchmarks.lm.cells import Cell, Data
from benchmarks.lm.papers import scale_name
from registry.adapters import paper_config
from registry.spec import BankConfig, BaseShape, BottleneckConfig, Frozen, FusionConfig, PrefixConfig, UnionConfig
from training.hyperparameters import Hyperparameters, PruningOptions, TrainingDtype
from training.methods.lora_targets import lora_for
from training.methods.widening import sparsity_of, widened

RATE_SEED = 0
EXPERTS = 4
PREFIX = 16
BATCHES = 4
"""Of training data that SNIP and GraSP take their gradients on."""

RATES: dict[str, tuple[float, ...]] = {
    "houlsby": (2e-3, 5e-3, 1.2e-2), "pfeiffer": (2e-3, 5e-3, 1.2e-2), "adamix": (2e-3, 5e-3, 1.2e-2),
    "lora": (2e-3, 5e-3, 1.2e-2), "mam": (5e-3, 1.2e-2, 2.5e-2), "fusion": (5e-4, 1e-3, 2e-3),
    "full": (3e-4, 7e-4, 1.5e-3), "top": (2e-3, 4e-3, 8e-3), "norms": (5e-3, 1.2e-2, 3e-2),
    "pfeiffer_tenth": (1e-3, 2e-3, 5e-3), "adamix_tenth": (2e-3, 5e-3, 1.2e-2),
}  # fmt: skip
"""Candidates of each family of variants; those on a tenth of the data are families of their own."""
REFERENCE = {
    "houlsby": "houlsby_16", "pfeiffer": "pfeiffer_16", "adamix": "adamix", "lora": "lora", "mam": "mam",
    "fusion": "fusion", "full": "full", "top": "top_1", "norms": "norms", "pfeiffer_tenth": "pfeiffer_16_tenth",
    "adamix_tenth": "adamix_tenth",
}  # fmt: skip
"""The variant that a family's rate is chosen with."""


class Size(Frozen):
    """How large the experiment is."""

    domains: tuple[str, ...] = ("king_james_bible", "biomed_papers")
    others: tuple[str, ...] = ("linux_man_pages", "state_of_the_union")
    """Domains of a fusion's further members."""
    seeds: tuple[int, ...] = (1, 2, 3)
    steps: int = 60
    batch: int = 4
    block: int = 128
    texts: int = 200
    """Passages to train on: "all data"; a tenth of them is "a tenth"."""
    valid_texts: int = 8
    test_texts: int = 56
    span_texts: int = 24
    draws: int = 2
    evaluations: int = 2
    curve: int = 10
    """Evaluations where the speed of convergence is compared."""
    sizes: tuple[int, ...] = (8, 16, 64)
    scales: tuple[float, ...] = (1e-4, 1e-3, 1e-1, 1.0)
    """Standard deviations of initial projections beside 1e-2, on Houlsby's largest size."""


NORMAL = Size()
LONG = Size(
    seeds=(1, 2, 3, 4, 5), steps=320, texts=2000, valid_texts=40, test_texts=160, span_texts=64, draws=4, curve=20,
    sizes=(8, 16, 64, 256), scales=(1e-6, 1e-4, 1e-3, 3e-2, 1e-1, 1.0),
)  # fmt: skip


@dataclass(frozen=True)
class Given:
    """The common values of all cells: the size, the base model, the texts, and the dtype of training."""

    size: Size
    shape: BaseShape
    data: Mapping[tuple[str, bool], Data]
    """By domain, and True for a tenth of the texts."""
    dtype: TrainingDtype


@dataclass(frozen=True)
class Variant:
    """One way of training, in both domains and with every seed; `fields` are those of its cells."""

    name: str
    paper: Literal["houlsby", "adamix", "sparse"]
    family: str
    label: str
    fields: Mapping[str, Any]
    tenth: bool = False
    steps: int = 1
    """Times the steps of the others."""
    curve: bool = False


def variants(size: Size, shape: BaseShape) -> list[Variant]:
    """Every variant there is, by paper."""
    return [*_houlsby(size), *_adamix(), *_sparse(shape)]


def _adapter(config: Any, **fields: Any) -> dict[str, Any]:
    return {"trains": "adapter", "config": config, "measures": ("test",), **fields}


def _houlsby(size: Size) -> Iterator[Variant]:
    largest = size.sizes[-1] if 64 not in size.sizes else 64
    for m in size.sizes:
        fields = _adapter(paper_config("houlsby", bottleneck=m))
        if m == largest:
            fields |= {"measures": ("test", "spans"), "span_texts": size.span_texts}
        yield Variant(f"houlsby_{m}", "houlsby", "houlsby", f"Houlsby, m = {m}", fields, curve=m == 16)
    for name, family, label, fields in (
        ("full", "full", "full fine-tuning", {"trains": "all"}),
        ("top_1", "top", "last layer only", {"trains": "top", "layers": 1}),
        ("top_2", "top", "last two layers only", {"trains": "top", "layers": 2}),
        ("norms", "norms", "LayerNorms only", {"trains": "norms"}),
    ):
        yield Variant(name, "houlsby", family, label, {**fields, "measures": ("test",)})
    for scale in size.scales:
        fields = _adapter(paper_config("houlsby", bottleneck=largest), std=scale)
        yield Variant(scale_name(scale), "houlsby", "houlsby", f"Houlsby, m = {largest}, start {scale:g}", fields)


def _adamix() -> Iterator[Variant]:
    expert = paper_config("pfeiffer", bottleneck=16)
    single, bank = _adapter(expert), BankConfig(expert=expert, experts=EXPERTS)
    apart = BankConfig(expert=expert, experts=EXPERTS, share="none")
    shared = _adapter(bank, consistency="released")
    unshared = _adapter(apart, consistency="released")
    routed = {**shared, "measures": ("test", "routing")}
    yield Variant("pfeiffer_16", "adamix", "pfeiffer", "Pfeiffer, m = 16", {**single, "keeps": True})
    yield Variant("pfeiffer_16_twice", "adamix", "pfeiffer", "Pfeiffer, m = 16, twice the steps", single, steps=2)
    yield Variant("adamix", "adamix", "adamix", "AdaMix, 4 experts, merged", routed)
    lone = _adapter(bank, consistency="none")
    yield Variant("adamix_no_consistency", "adamix", "adamix", "AdaMix without consistency", lone)
    yield Variant("adamix_no_sharing", "adamix", "adamix", "AdaMix without sharing", unshared)
    for name, family, label, fields in (
        ("pfeiffer_16_tenth", "pfeiffer_tenth", "Pfeiffer, m = 16", single),
        ("adamix_tenth", "adamix_tenth", "AdaMix", shared),
        ("adamix_no_sharing_tenth", "adamix_tenth", "AdaMix without sharing", unshared),
    ):
        yield Variant(name, "adamix", family, f"{label}, a tenth of the data", fields, tenth=True)


def _pruned(fields: Mapping[str, Any], score: Any = "snip", sparsity: float = 0.4) -> dict[str, Any]:
    return {**fields, "pruning": PruningOptions(score=score, sparsity=sparsity, batches=BATCHES)}


def _sparse(shape: BaseShape) -> Iterator[Variant]:
    dense = _adapter(paper_config("houlsby", bottleneck=16))
    for score in ("random", "magnitude", "erdos_renyi", "snip", "grasp"):
        label = f"Houlsby, m = 16, {score.replace('_', '-')} 40 %"
        yield Variant(f"{score}_40", "sparse", "houlsby", label, _pruned(dense, score))
    for share in (60, 80):
        label = f"Houlsby, m = 16, snip {share} %"
        yield Variant(f"snip_{share}", "sparse", "houlsby", label, _pruned(dense, sparsity=share / 100))
    for factor in (2, 3, 4):
        wide = _adapter(widened(paper_config("houlsby", bottleneck=16), factor))
        label = f"Large-Sparse {factor}x, m = {16 * factor}, snip {round(100 - 100 / factor)} %"
        fields = _pruned(wide, sparsity=sparsity_of(factor))
        yield Variant(f"large_{factor}", "sparse", "houlsby", label, fields, curve=True)
    lora = _adapter(lora_for(shape, rank=8, alpha=16.0), init="small_b")
    parallel = paper_config("parallel", bottleneck=16)
    mam = _adapter(UnionConfig(members=(PrefixConfig(length=PREFIX), parallel)))
    for name, label, fields in (
        ("pfeiffer_16", "Pfeiffer, m = 16", _adapter(paper_config("pfeiffer", bottleneck=16))),
        ("lora", "LoRA, rank 8", lora),
        ("mam", f"MAM, prefix {PREFIX} and parallel m = 16", mam),
    ):
        family = name.removesuffix("_16")
        if name != "pfeiffer_16":
            yield Variant(name, "sparse", family, label, fields)
        yield Variant(f"{name}_snip", "sparse", family, f"{label}, snip 40 %", _pruned(fields))


# --- cells ------------------------------------------------------------------------------------------


def recipe(given: Given, *, rate: float, seed: int, steps: int = 1, evaluations: int) -> Hyperparameters:
    """One recipe for all, but for the learning rate: Adam (.9, .98), a tenth warm-up, then linear decay."""
    size = given.size
    return Hyperparameters(
        steps=size.steps * steps, batch=size.batch, block=size.block, learning_rate=rate, warmup=0.1, beta2=0.98,
        dtype=given.dtype, evaluations=evaluations, data_seed=seed,
    )  # fmt: skip


def cell(given: Given, variant: Variant, domain: str, *, rate: float, seed: int, **fields: Any) -> Cell:
    """One cell of a variant; `fields` replace the variant's."""
    size = given.size
    evaluations = size.curve if variant.curve else size.evaluations
    values = {**variant.fields, **fields}
    pruning = values.get("pruning")
    if pruning is not None:
        values["pruning"] = pruning.model_copy(update={"seed": seed})
    if "routing" in values["measures"]:
        values["draws"] = size.draws
    return Cell(
        variant=variant.name, data=given.data[domain, variant.tenth], seed=seed, base=given.shape.fingerprint,
        recipe=recipe(given, rate=rate, seed=seed, steps=variant.steps, evaluations=evaluations),
        window=given.shape.context - PREFIX, **values,
    )  # fmt: skip


def base_cells(given: Given) -> list[Cell]:
    """The base model on the test text of each domain."""
    variant = Variant("base", "houlsby", "base", "base model", {"trains": "nothing", "measures": ("test",)})
    return [cell(given, variant, domain, rate=1.0, seed=0) for domain in given.size.domains]


def rate_cells(given: Given, families: Iterable[str], members: Members | None = None) -> list[Cell]:
    """The candidates of some families in every domain; nothing but validation text is scored."""
    known = [*variants(given.size, given.shape), *fusions()]
    named = {variant.name: replace(variant, curve=False) for variant in known}
    nothing: dict[str, Any] = {"measures": (), "keeps": False}
    return [
        cell(
            given, named[REFERENCE[family]], domain, rate=rate, seed=RATE_SEED,
            **nothing, **(_fused(members(domain, given.size.seeds[0])) if family == "fusion" and members else {}),
        )
        for family in families
        for rate in RATES[family]
        for domain in given.size.domains
    ]  # fmt: skip


def variant_cells(given: Given, rates: Mapping[str, float]) -> list[Cell]:
    """Every variant but the fusions, in both domains and with every seed, and the fusions' further members."""
    size = given.size
    found = [
        cell(given, variant, domain, rate=rates[variant.family], seed=seed)
        for variant in variants(size, given.shape)
        for domain in size.domains
        for seed in size.seeds
    ]
    member = next(variant for variant in variants(size, given.shape) if variant.name == "pfeiffer_16")
    return found + [
        cell(given, member, domain, rate=rates["pfeiffer"], seed=size.seeds[0], measures=()) for domain in size.others
    ]


Members = Callable[[str, int], list[Cell]]
"""(domain, seed) -> the cells whose adapters the fusion there is over."""


def members_among(cells: Sequence[Cell], size: Size) -> Members:
    """A fusion's members: the adapters of both domains with its seed, and those of the further domains."""
    made = {(one.data.domain, one.seed): one for one in cells if one.variant == "pfeiffer_16" and one.keeps}
    return lambda _domain, seed: [
        *(made[domain, seed] for domain in size.domains), *(made[domain, size.seeds[0]] for domain in size.others)
    ]  # fmt: skip


def fusions() -> list[Variant]:
    """Fusions over adapters there are, dense and pruned; their configuration is completed by the members."""
    dense = _adapter(None)
    return [
        Variant("fusion", "sparse", "fusion", "AdapterFusion over 4", dense),
        Variant("fusion_snip", "sparse", "fusion", "AdapterFusion over 4, snip 40 %", _pruned(dense)),
    ]


def _fused(members: Sequence[Cell]) -> dict[str, Any]:
    first = members[0].config
    assert isinstance(first, BottleneckConfig)
    config = FusionConfig(member=first, members=len(members))
    return {"config": config, "members": tuple(one.key for one in members)}


def fusion_cells(given: Given, rate: float, members: Members) -> list[Cell]:
    """The fusions in both domains and with every seed."""
    return [
        cell(given, variant, domain, rate=rate, seed=seed, **_fused(members(domain, seed)))
        for variant in fusions()
        for domain in given.size.domains
        for seed in given.size.seeds
    ]
