"""Fisher averages, RegMean and truncation by inputs: the formulas in double precision, on statistics that are drawn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from registry.adapters.moments import measured_weights, packed, unpacked
from registry.errors import Incompatible, Internal
from registry.mixing import MIXINGS
from registry.mixing.auto import choose_mixing
from registry.mixing.compat import SoupIngredient, Statistic
from registry.spec import (
    AverageMixing,
    ConcatMixing,
    FisherMixing,
    HeadConfig,
    PrefixConfig,
    RecompressMixing,
    RegMeanMixing,
    UnionConfig,
)
from tests.registry.pruned_adapters import sparse
from tests.registry.random_adapters import (
    INIT,
    OTHER_INIT,
    bottleneck,
    deltas,
    known,
    lora,
    part,
    tensors_of,
    weighted,
)

PLAIN = bottleneck("bapna_firat", 5)
BOTH = [FisherMixing(), RegMeanMixing()]


def ours(parts: Sequence[SoupIngredient], mixing) -> dict[str, torch.Tensor]:
    return MIXINGS[mixing.method].mix(parts, mixing)


def measured(configs, weights, kind: str, **changes) -> list[SoupIngredient]:
    return [known(one, kind) for one in weighted(configs, weights, **changes)]


def moments_of(values: torch.Tensor, size: int) -> np.ndarray:
    return unpacked(values, size).numpy()


def update(config, tensors, path: str) -> np.ndarray:
    """s B A of a module, float64."""
    return deltas(config, tensors)[path].numpy()


# --- Fisher ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("config", [PLAIN, bottleneck("houlsby", 3), lora(3)])
def test_fisher_is_the_papers_formula(config) -> None:
    parts = measured([config] * 3, [1, 2, 5], "fisher", provenance=INIT)
    found = ours(parts, FisherMixing())
    for name, tensor in found.items():
        over = sum(float(one.weight) * one.load_statistic()[name].double() for one in parts)
        above = sum(
            float(one.weight) * one.load_statistic()[name].double() * one.load()[name].double() for one in parts
        )
        assert torch.allclose(tensor.double(), above / over, rtol=1e-6, atol=1e-7), name


def test_equal_fishers_are_the_average_and_none_too() -> None:
    parts = weighted([PLAIN] * 2, [1, 3], provenance=INIT)
    average = ours(parts, AverageMixing())
    for value in (2.5e-9, 0.0):
        same = {name: torch.full_like(tensor, value) for name, tensor in parts[0].load().items()}
        alike = [replace(one, statistic=Statistic(one.digest, lambda same=same: same)) for one in parts]
        for name, tensor in ours(alike, FisherMixing()).items():
            assert torch.allclose(tensor, average[name], rtol=1e-6, atol=1e-7), name


def test_a_value_is_that_of_the_one_ingredient_it_matters_to() -> None:
    parts = weighted([PLAIN] * 2, [1, 3], provenance=INIT)
    name = "layers.0.ffn.down.weight"
    says = [{key: torch.zeros_like(one) for key, one in parts[0].load().items()} for _ in parts]
    says[1][name][2, 3] = 1e-12
    parts = [
        replace(one, statistic=Statistic(one.digest, lambda own=own: own)) for one, own in zip(parts, says, strict=True)
    ]
    assert ours(parts, FisherMixing())[name][2, 3] == parts[1].load()[name][2, 3]


# --- RegMean --------------------------------------------------------------------------------------


@pytest.mark.parametrize("off", ["0.9", "0.1", "1"])
def test_regmean_is_the_papers_formula(off: str) -> None:
    parts = measured([PLAIN] * 3, [1, 2, 5], "inputs", provenance=INIT)
    found, average = ours(parts, RegMeanMixing(off_diagonal=off)), ours(parts, AverageMixing())
    fitted = measured_weights(PLAIN, found)
    assert len(fitted) == 4
    for name, tensor in found.items():
        if name not in fitted:
            assert torch.equal(tensor, average[name]), name
            continue
        assert not torch.allclose(tensor, average[name], rtol=1e-2), name
        left, right = 0.0, 0.0
        for one in parts:
            gram = moments_of(one.load_statistic()[name], tensor.shape[1])
            gram = float(off) * gram + (1 - float(off)) * np.diag(np.diag(gram))
            left = left + float(one.weight) * gram
            right = right + float(one.weight) * gram @ one.load()[name].double().numpy().T
        assert np.allclose(tensor.numpy(), np.linalg.solve(left, right).T, rtol=1e-4, atol=1e-4), name


def test_regmean_has_the_least_error_on_what_was_read() -> None:
    """Of all matrices, here of small steps around it, the one whose outputs are nearest."""
    parts = measured([PLAIN] * 2, [1, 1], "inputs", provenance=INIT)
    name = "layers.1.ffn.up.weight"
    fitted = ours(parts, RegMeanMixing(off_diagonal="1"))[name].double().numpy()

    def error(value: np.ndarray) -> float:
        differences = [value - one.load()[name].double().numpy() for one in parts]
        grams = [moments_of(one.load_statistic()[name], value.shape[1]) for one in parts]
        return sum(float(np.trace(d @ gram @ d.T)) for d, gram in zip(differences, grams, strict=True))

    draw = np.random.default_rng(0)
    for size in (1e-3, 1e-1):
        assert all(error(fitted + size * draw.normal(size=fitted.shape)) > error(fitted) for _ in range(5))


def test_inputs_that_nobody_reads_get_the_average() -> None:
    parts = measured([PLAIN] * 2, [1, 3], "inputs", provenance=INIT)
    name = "layers.0.ffn.up.weight"
    average = ours(parts, AverageMixing())[name]
    silent = []
    for one in parts:
        gram = moments_of(one.load_statistic()[name], 5)
        gram[2], gram[:, 2] = 0, 0
        says = {**one.load_statistic(), name: packed(torch.from_numpy(gram))}
        silent.append(replace(one, statistic=Statistic(one.digest, lambda says=says: says)))
    found = ours(silent, RegMeanMixing())[name]
    assert torch.allclose(found[:, 2], average[:, 2], rtol=1e-5, atol=1e-6)
    assert not torch.allclose(found[:, 1], average[:, 1], rtol=1e-2)
    nothing = {key: torch.zeros_like(value) for key, value in parts[0].load_statistic().items()}
    silent = [replace(one, statistic=Statistic(one.digest, lambda: nothing)) for one in parts]
    assert torch.allclose(ours(silent, RegMeanMixing())[name], average, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("scale", ["1", "0.5"])
def test_regmean_of_loras_is_the_formula_on_their_updates(scale: str) -> None:
    """Whatever they started from, and exact at the sum of their ranks."""
    configs = [lora(2, leaves=("c_attn", "c_proj")), lora(4, 3.0, rslora=True, leaves=("c_attn", "c_proj"))]
    parts = measured(configs, [1, 3], "inputs")
    mixing = RegMeanMixing(scale=scale)
    method = MIXINGS["regmean"]
    assert method.check(parts, mixing) == []
    config = method.result(parts, mixing)
    assert set(config.widths().values()) == {6}
    soup = ours(parts, mixing)
    for path in config.modules():
        left, right = 0.0, 0.0
        for one in parts:
            gram = moments_of(
                one.load_statistic()[f"base_model.model.{path}.lora_A.weight"], update(config, soup, path).shape[1]
            )
            gram = 0.9 * gram + 0.1 * np.diag(np.diag(gram))
            left = left + float(one.weight) * gram
            right = right + float(one.weight) * gram @ update(one.config, one.load(), path).T
        wanted = float(scale) * np.linalg.solve(left, right).T
        assert np.allclose(update(config, soup, path), wanted, rtol=1e-4, atol=1e-3), path
    assert "max_width is 5" in method.too_wide(parts, mixing, 5)[0]
    assert method.too_wide(measured([PLAIN] * 2, [1, 1], "inputs"), mixing, 1) == []


# --- what they have in common ---------------------------------------------------------------------


@pytest.mark.parametrize("mixing", BOTH, ids=lambda one: one.method)
class TestByStatistics:
    def kind(self, mixing) -> str:
        kind = MIXINGS[mixing.method].statistic(mixing)
        assert kind is not None
        return kind

    def test_one_ingredient_is_itself_and_needs_no_statistic(self, mixing) -> None:
        for config in (PLAIN, lora(3)):
            (one,) = weighted([config], [1])
            assert MIXINGS[mixing.method].check([one], mixing) == []
            assert MIXINGS[mixing.method].result([one], mixing) == config
            assert all(torch.equal(tensor, one.load()[name]) for name, tensor in ours([one], mixing).items())

    def test_copies_of_one_are_that_one(self, mixing) -> None:
        same = tensors_of(PLAIN, 0)
        parts = measured([PLAIN] * 3, [1, 3, 4], self.kind(mixing), provenance=INIT, load=lambda: same)
        for name, tensor in ours(parts, mixing).items():
            assert torch.allclose(tensor, same[name], rtol=1e-5, atol=1e-6), name

    def test_the_scale_is_of_the_output(self, mixing) -> None:
        parts = measured([PLAIN] * 2, [1, 1], self.kind(mixing), provenance=INIT)
        plain, doubled = ours(parts, mixing), ours(parts, mixing.model_copy(update={"scale": "2"}))
        for name, tensor in plain.items():
            assert torch.equal(doubled[name], tensor * 2 if ".up." in name else tensor), name

    def test_without_a_statistic_nothing_is_mixed(self, mixing) -> None:
        with pytest.raises(Internal, match="was to be mixed by a statistic"):
            ours(weighted([PLAIN] * 2, [1, 1], provenance=INIT), mixing)

    def test_what_cannot_be_mixed_so_is_refused(self, mixing) -> None:
        head = HeadConfig(task="classification", labels=("no", "yes"))
        union = UnionConfig(members=(PrefixConfig(length=2), bottleneck("parallel", 3)))
        pruned, tensors = sparse(bottleneck("pfeiffer", 4), 0)
        sampled = {"provenance": INIT, "sample": INIT.init_hash}
        for parts, words in (
            ([part(n, PLAIN, provenance=INIT) for n in range(2)], "acme/a0@1, acme/a1@1 have no sample whose text is"),
            (
                [part(0, PLAIN, **sampled), part(1, PLAIN, provenance=INIT)],
                "acme/a1@1 has no sample whose text is kept",
            ),
            ([part(0, PLAIN, provenance=INIT), part(1, PLAIN, provenance=OTHER_INIT)], "initialisations differ"),
            ([part(n, pruned, load=lambda: tensors, **sampled) for n in range(2)], "is pruned, and"),
            ([part(n, head, **sampled) for n in range(2)], "has no projections to mix"),
            ([part(n, union, **sampled) for n in range(2)], "of bottlenecks and LoRAs, and acme/a0@1 is a union"),
            ([part(n, PLAIN, layers={"layers.0.ffn": "1"}, **sampled) for n in range(2)], "factors by layer"),
        ):
            with pytest.raises(Incompatible) as refused:
                choose_mixing(parts, mixing, max_width=512)
            assert words in refused.value.message, refused.value.message
        vouched = mixing.model_copy(update={"assume_same_init": True})
        parts = [part(n, PLAIN, sample=INIT.init_hash) for n in range(2)]
        assert choose_mixing(parts, vouched, max_width=512).mixing == vouched


def test_regmean_of_loras_on_other_modules_is_refused() -> None:
    parts = measured([lora(2), lora(2, leaves=("c_fc",))], [1, 1], "inputs")
    assert "on different modules, and RegMean needs the same" in MIXINGS["regmean"].check(parts, RegMeanMixing())[0]


# --- recompress by inputs -------------------------------------------------------------------------


def seen_error(parts, config, soup, path: str) -> tuple[float, float]:
    """(error, size) of a module's update on what is read there, squared and weighed."""
    name = f"base_model.model.{path}.lora_A.weight"
    wanted = sum(
        float(one.weight) * update(one.config, one.load(), path) for one in parts if path in one.config.widths()
    )
    difference = update(config, soup, path) - wanted
    grams = [
        float(one.weight) * moments_of(one.load_statistic()[name], wanted.shape[1])
        for one in parts
        if path in one.config.widths()
    ]
    moments = sum(grams)
    return float(np.trace(difference @ moments @ difference.T)), float(np.trace(wanted @ moments @ wanted.T))


def test_a_lora_is_truncated_by_what_its_modules_read() -> None:
    """The best there is of that rank, as numpy's SVD of B A C^1/2 says; the plain truncation is worse there."""
    configs = [lora(3, leaves=("c_attn", "c_proj")), lora(3, 2.0, leaves=("c_attn",))]
    parts = measured(configs, [1, 2], "inputs")
    method, plain = MIXINGS["recompress"], RecompressMixing()
    by_inputs = RecompressMixing(by_inputs=True)
    assert method.check(parts, by_inputs) == []
    config = method.result(parts, by_inputs)
    assert config == method.result(parts, plain)
    soup, other = ours(parts, by_inputs), ours(parts, plain)
    for path in configs[1].modules():  # where both are
        name = f"base_model.model.{path}.lora_A.weight"
        moments = sum(float(one.weight) * moments_of(one.load_statistic()[name], 16) for one in parts)
        values, vectors = np.linalg.eigh(moments)
        root = vectors * np.sqrt(np.maximum(values, 0)) @ vectors.T
        wanted = sum(float(one.weight) * update(one.config, one.load(), path) for one in parts)
        left, sizes, right = np.linalg.svd(wanted @ root, full_matrices=False)
        best = (left[:, :3] * sizes[:3]) @ right[:3] @ np.linalg.inv(root)
        assert np.allclose(update(config, soup, path), best, rtol=1e-4, atol=1e-3), path
        error, size = seen_error(parts, config, soup, path)
        assert error == pytest.approx(float((sizes[3:] ** 2).sum()), rel=1e-4)
        assert error < 0.98 * seen_error(parts, config, other, path)[0]
        assert error < size


def test_by_inputs_is_of_loras_and_nothing_changes_where_nothing_is_left_out() -> None:
    by_inputs = RecompressMixing(by_inputs=True)
    check = MIXINGS["recompress"].check
    assert (
        "'by_inputs' is of LoRAs, and acme/a0@1 is a bottleneck"
        in check(measured([PLAIN] * 2, [1, 1], "inputs"), by_inputs)[0]
    )
    assert (
        "have no sample whose text is kept, and 'by_inputs' goes"
        in check(weighted([lora(2)] * 2, [1, 1]), by_inputs)[0]
    )
    parts = measured([lora(2)] * 2, [1, 1], "inputs")
    wide, exact = ours(parts, RecompressMixing(by_inputs=True, width=4)), ours(parts, ConcatMixing())
    assert all(torch.equal(tensor, exact[name]) for name, tensor in wide.items())
