"""Pruning before training: exact counts, what each score keeps, zero for good, and what is refused."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import nn

from registry.adapters import attached, create, expected_tensors, paper_config
from registry.adapters.masks import is_mask, mask_name, mask_problems, projections, unpack, without_masks
from registry.adapters.weights import check_weights, init_hash, save_tensors
from registry.errors import InvalidParameter
from registry.spec import BankConfig, FusionConfig, HeadConfig, PrefixConfig, UnionConfig
from tests.registry.random_adapters import SHAPE, lora
from tests.training.conftest import TEXTS, VALID, train_on
from training.build import widened
from training.data import pack
from training.hyperparameters import Hyperparameters, PruningOptions
from training.methods.lora_targets import lora_for
from training.methods.pruning import masks_of, prune
from training.methods.pruning_scores import scores_of
from training.spec import PruningRequest
from training.trainer import loss_of

pytestmark = pytest.mark.slow

RECIPE = Hyperparameters(
    steps=6, batch=4, accumulate=2, block=32, learning_rate=1e-2, weight_decay=0.1, evaluations=3, beta2=0.98
)
DATA = "sha256:" + "d" * 64


def adapter_of(base, config, init="near_identity"):
    return create(config, base.shape, seed=3, init=init, base=base.model)


def pruned_one(base, config, *, init="near_identity", **options):
    adapter = adapter_of(base, config, init)
    rows = pack(TEXTS, base.tokenize, block=32).rows
    with attached(base.model, adapter):
        return prune(adapter, loss_of(base, adapter), rows, PruningOptions(**options), batch=4, data_digest=DATA)


def tensors_of(adapter):
    return {name: tensor.detach() for name, tensor in adapter.state_dict().items()}


# --- counts and places ----------------------------------------------------------------------------

scored = st.lists(st.tuples(st.integers(1, 6), st.integers(1, 6)), min_size=1, max_size=5).flatmap(
    lambda sizes: st.tuples(
        st.just(sizes), st.lists(st.integers(0, 5), min_size=sum(a * b for a, b in sizes), max_size=400)
    )
)


def as_scores(drawn):
    sizes, entries = drawn
    scores, start = {}, 0
    for number, (rows, columns) in enumerate(sizes):
        values = entries[start : start + rows * columns]
        scores[f"layers.{number}.ffn.up.weight"] = torch.tensor(values, dtype=torch.float64).reshape(rows, columns)
        start += rows * columns
    return scores


@given(scored, st.floats(0.01, 0.99), st.sampled_from(["random", "snip", "erdos_renyi"]))
def test_exactly_the_share_goes_and_the_lowest_of_it(drawn, sparsity, score):
    scores = as_scores(drawn)
    total = sum(tensor.numel() for tensor in scores.values())
    masked = round(sparsity * total)
    options = PruningOptions(score=score, sparsity=sparsity)
    if masked in (0, total):
        with pytest.raises(InvalidParameter, match="none" if masked == 0 else "all"):
            masks_of(scores, options)
        return
    keep = masks_of(scores, options)
    assert {name: tensor.shape for name, tensor in keep.items()} == {
        name: tensor.shape for name, tensor in scores.items()
    }
    assert sum(int((~mask).sum()) for mask in keep.values()) == masked
    groups = [[name] for name in scores] if score == "erdos_renyi" else [list(scores)]
    for names in groups:
        flat = torch.cat([scores[name].reshape(-1) for name in names]).tolist()
        pruned = torch.cat([~keep[name].reshape(-1) for name in names]).tolist()
        ranked = sorted(range(len(flat)), key=lambda i: (flat[i], i))  # ties by index
        assert sorted(ranked[: sum(pruned)]) == [i for i, out in enumerate(pruned) if out]


@given(scored, st.floats(0.1, 0.9))
@example(([(1, 1)] * 4, [0] * 4), 0.3)
@example(([(1, 1)] * 4, [0] * 4), 0.7)
def test_a_layer_at_a_time_each_has_the_share(drawn, sparsity):
    scores, options = as_scores(drawn), PruningOptions(sparsity=sparsity, scope="layer")
    counts = {name: round(sparsity * tensor.numel()) for name, tensor in scores.items()}
    masked = sum(counts.values())
    if masked in (0, sum(tensor.numel() for tensor in scores.values())):
        with pytest.raises(InvalidParameter, match="none" if masked == 0 else "all"):
            masks_of(scores, options)
        return
    assert {name: int((~keep).sum()) for name, keep in masks_of(scores, options).items()} == counts


@given(
    st.lists(st.tuples(st.integers(1, 40), st.integers(1, 40)), min_size=2, max_size=5),
    st.floats(0.05, 0.95),
)
@settings(max_examples=60)
def test_erdos_renyi_keeps_in_proportion_to_inputs_and_outputs(sizes, sparsity):
    scores = {str(i): torch.arange(a * b, dtype=torch.float64).reshape(a, b) for i, (a, b) in enumerate(sizes)}
    total = sum(tensor.numel() for tensor in scores.values())
    if not 0 < round(sparsity * total) < total:
        return
    keep = masks_of(scores, PruningOptions(score="erdos_renyi", sparsity=sparsity))
    counts = {name: int(mask.sum()) for name, mask in keep.items()}
    lowest = [(counts[name] - 1) / sum(tensor.shape) for name, tensor in scores.items()]  # full ones are below the rate
    highest = [
        (counts[name] + 1) / sum(tensor.shape) for name, tensor in scores.items() if counts[name] < tensor.numel()
    ]
    assert max(lowest) <= min(highest)


# --- scores ---------------------------------------------------------------------------------------


def test_magnitude_and_random_need_no_data():
    weights = {"a": nn.Parameter(torch.tensor([[1.0, -3.0]])), "b": nn.Parameter(torch.tensor([[0.5]]))}
    assert scores_of("magnitude", weights, None, [], seed=0)["a"].tolist() == [[1.0, 3.0]]
    first, repeated, reseeded = (scores_of("random", weights, None, [], seed=seed) for seed in (0, 0, 1))
    assert torch.equal(first["a"], repeated["a"])
    assert not torch.equal(first["a"], reseeded["a"])
    assert all(0 <= float(entry) < 1 for score in first.values() for entry in score.reshape(-1))


def test_snip_and_grasp_by_hand():
    """Loss 1/2 w^T H w + c w, with other H and c on each row: g = H w + c, SNIP |w g|, GraSP w (H g)."""
    rng = np.random.default_rng(0)
    raw = rng.normal(size=(3, 4, 4))
    curvature = torch.from_numpy(raw + raw.transpose(0, 2, 1))
    slope = torch.from_numpy(rng.normal(size=(3, 4)))
    start = torch.from_numpy(rng.normal(size=4))
    weights = {"a": nn.Parameter(start[:3].clone().reshape(1, 3)), "b": nn.Parameter(start[3:].clone().reshape(1, 1))}

    def loss(rows):
        w = torch.cat([weights["a"].reshape(-1), weights["b"].reshape(-1)])
        picked = rows[:, 0]
        return (0.5 * torch.einsum("i,rij,j->r", w, curvature[picked], w) + slope[picked] @ w).mean()

    batches = [torch.tensor([[0], [1]]), torch.tensor([[2]])]  # of two sizes: rows count alike
    hessian, linear = curvature.mean(0), slope.mean(0)
    gradient = hessian @ start + linear
    snip = scores_of("snip", weights, loss, batches, seed=0)
    grasp = scores_of("grasp", weights, loss, batches, seed=0)
    torch.testing.assert_close(torch.cat([snip["a"][0], snip["b"][0]]), (start * gradient).abs())
    torch.testing.assert_close(torch.cat([grasp["a"][0], grasp["b"][0]]), start * (hessian @ gradient))
    assert all(parameter.grad is None for parameter in weights.values())


@pytest.mark.parametrize(
    ("score", "structure", "init"),
    [
        ("random", "bapna_firat", "near_identity"),
        ("magnitude", "houlsby", "near_identity"),
        ("erdos_renyi", "bapna_firat", "near_identity"),
        ("snip", "houlsby", "near_identity"),
        ("grasp", "bapna_firat", "near_identity"),
        ("random", "lora", "near_identity"),
        ("magnitude", "lora", "near_identity"),
        ("erdos_renyi", "lora", "near_identity"),
        ("snip", "lora", "small_b"),
        ("grasp", "lora", "small_b"),
        ("snip", "mam", "near_identity"),
        ("magnitude", "fusion", "linear"),
        ("snip", "fusion", "linear"),
    ],
)
def test_every_score_leaves_an_adapter_that_can_be_pushed(base, score, structure, init):
    """Of LoRAs both factors are pruned, of MAM the bottleneck, and of a fusion its attention."""
    configs = {
        "lora": lora_for(base.shape, rank=3, alpha=6.0),
        "mam": UnionConfig(members=(PrefixConfig(length=4), paper_config("parallel", bottleneck=4))),
        "fusion": FusionConfig(member=paper_config("pfeiffer", bottleneck=3), members=2),
    }
    config = configs.get(structure) or paper_config(structure, bottleneck=5)
    adapter = pruned_one(base, config, init=init, score=score, sparsity=0.4)
    tensors = tensors_of(adapter)
    ((prefix, names),) = projections(config, tensors).items()
    leaves = {"lora": {"lora_A", "lora_B"}, "fusion": {"query", "key", "value"}}.get(structure, {"down", "up"})
    assert {name.split(".")[-2] for name in tensors if is_mask(name)} == leaves
    entries = sum(tensors[name].numel() for name in names)
    pruned = adapter.config.prunings()[prefix]
    assert (pruned.score, pruned.sparsity, pruned.masked) == (score, 0.4, round(0.4 * entries))
    assert pruned.data == (DATA if score in ("snip", "grasp") else None)
    assert adapter.config.dense() == config
    assert mask_problems(adapter.config, tensors) == []
    check_weights(save_tensors(tensors), adapter.config, base.shape, max_bytes=10**7)
    for name, tensor in adapter_of(base, config, init).state_dict().items():  # what is kept is as it was
        keep = unpack(tensors[mask_name(name)], tensor.shape) if name in names else torch.tensor(True)
        assert torch.equal(tensors[name], tensor * keep)


def test_the_seed_draws_the_batches(base):
    config = paper_config("pfeiffer", bottleneck=4)
    masks = [
        save_tensors(
            {n: t for n, t in tensors_of(pruned_one(base, config, batches=1, seed=seed)).items() if is_mask(n)}
        )
        for seed in (0, 0, 1)
    ]
    assert masks[0] == masks[1] != masks[2]


# --- zero for good --------------------------------------------------------------------------------


def train(base, config, **changes):
    settings = {"hyperparameters": RECIPE, "pruning": PruningOptions(sparsity=0.5), **changes}
    return train_on(base, config, TEXTS, VALID, **settings)


def test_pruned_entries_stay_zero_and_the_others_train(base):
    config = paper_config("houlsby", bottleneck=5)
    trained = train(base, config)
    start = adapter_of(base, config)
    assert trained.config.dense() == config
    assert trained.init_hash == train(base, config, pruning=None).init_hash
    assert trained.init_hash != init_hash(without_masks(trained.tensors))
    assert mask_problems(trained.config, trained.tensors) == []
    moved = {name for name, tensor in start.state_dict().items() if not torch.equal(tensor, trained.tensors[name])}
    assert moved == set(start.state_dict())
    assert trained.config.pruned.data == trained.record["data"]["train"]
    assert trained.record["pruning"]["sparsity"] == 0.5
    remaining = sum(tensor.numel() for tensor in without_masks(trained.tensors).values()) - trained.config.pruned.masked
    assert trained.record["parameters"]["trained"] == remaining


def test_a_mask_that_is_brought_along_is_the_one_that_counts(base):
    """A checkpoint fills the masks there are: gradients follow them."""
    adapter = pruned_one(base, paper_config("pfeiffer", bottleneck=4), score="random")
    linear = adapter.layers[0].ffn.down
    linear.mask.copy_(~linear.mask)
    with attached(base.model, adapter):
        loss_of(base, adapter)(torch.from_numpy(pack(TEXTS, base.tokenize, block=32).rows[:2])).backward()
    assert torch.equal(linear.weight.grad != 0, unpack(linear.mask, linear.weight.shape))


# --- refused --------------------------------------------------------------------------------------


@pytest.mark.parametrize("score", ["snip", "grasp"])
def test_scores_that_say_nothing(base, score):
    with pytest.raises(InvalidParameter, match=r"0 for every entry.*starts at zero") as caught:
        pruned_one(base, paper_config("parallel", bottleneck=4), init="zero_up", score=score)
    assert caught.value.param == "score"
    with pytest.raises(InvalidParameter, match="small_b"):
        pruned_one(base, lora_for(base.shape, rank=2, alpha=4.0), score=score)


def test_what_cannot_be_pruned(base):
    for sparsity in (0.5, 1e-6):
        with pytest.raises(InvalidParameter, match="density of each layer"):
            pruned_one(
                base, paper_config("pfeiffer", bottleneck=4), score="erdos_renyi", scope="layer", sparsity=sparsity
            )


def test_a_gradient_that_is_no_number():
    weight = {"a": nn.Parameter(torch.ones(1, 2))}
    with pytest.raises(InvalidParameter, match="not finite"):
        scores_of("snip", weight, lambda _: weight["a"].sum() * math.inf, [torch.zeros(1, 1)], seed=0)


# --- wider, and pruned to as many entries as before ------------------------------------------------

NARROW = paper_config("houlsby", bottleneck=6)
MAM = UnionConfig(members=(PrefixConfig(length=3), paper_config("parallel", bottleneck=5)))


def entries(config):
    sizes = expected_tensors(config, SHAPE)
    return sum(math.prod(sizes[name]) for names in projections(config, sizes).values() for name in names)


@given(st.sampled_from([NARROW, lora(rank=3), lora(rank=5, rslora=True, leaves=("c_fc", "c_attn"))]), st.integers(2, 9))
def test_as_many_entries_stay(config, factor):
    wide = widened(config, factor)
    assert entries(wide) == factor * entries(config)
    assert entries(wide) - round(PruningRequest(widen=factor).options().sparsity * entries(wide)) == entries(config)


def test_nothing_but_the_width_changes():
    wide = widened(NARROW, 3)
    assert wide == NARROW.model_copy(update={"bottleneck": 18})
    for config in (lora(rank=3, alpha=6.0), lora(rank=4, alpha=7.0, rslora=True)):
        grown = widened(config, 2)
        for path, module in config.modules().items():
            wider = grown.modules()[path]
            assert wider.rank == 2 * module.rank
            assert grown.scaling(wider) == pytest.approx(config.scaling(module))


def test_of_a_union_what_has_a_width_is_widened():
    wide = widened(MAM, 2)
    assert {member.method: member for member in wide.members} == {
        "bottleneck": paper_config("parallel", bottleneck=10),
        "prefix": PrefixConfig(length=3),
    }


def test_what_cannot_be_widened():
    head = HeadConfig(task="classification", labels=("a", "b"))
    narrow = paper_config("pfeiffer", bottleneck=4)
    for config in (
        head,
        PrefixConfig(length=3),
        UnionConfig(members=(head, PrefixConfig(length=3))),
        FusionConfig(member=narrow, members=2),
        BankConfig(expert=narrow),
    ):
        with pytest.raises(InvalidParameter, match=f"A {config.method} adapter has no width"):
            widened(config, 2)
    with pytest.raises(InvalidParameter, match="cannot be"):
        widened(narrow.model_copy(update={"bottleneck": 40_000}), 2)
