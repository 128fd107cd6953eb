"""Cook with `auto` and `concat`: unknown origins, LoRAs, mixed pools, widths, and what is stored and told of them."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch

from registry.adapters import create, expected_tensors
from registry.adapters.weights import adapter_digest, init_hash, load_tensors, save_tensors
from registry.errors import DamagedBlob, Incompatible, Internal, InvalidRecipe
from registry.selectors.ranking import LISTED
from registry.spec import (
    AutoMixing,
    AverageMixing,
    BottleneckConfig,
    ConcatMixing,
    CookRequest,
    MixReport,
    Provenance,
    RecompressMixing,
    TaskArithmeticMixing,
)
from tests.registry.toy_registry import (
    CONFIG,
    INIT,
    LORA,
    OTHER_CONFIG,
    OTHER_INIT,
    SHAPE,
    WEIGHTS,
    WIDE_LORA,
    ToyRegistry,
    inline,
    passages,
    weights,
)  # fmt: skip

ON_DATABASES = ("sqlite",)  # whatever they ask a catalogue, `test_cook` and its own tests ask one of each kind

UNKNOWN: dict[str, str] = {}


def texts(**counts: int) -> dict[str, list[str]]:
    """A sample with so many passages of each domain."""
    return {"texts": [text for domain, count in counts.items() for text in passages(domain, count, seed=7)]}


def by_hand(*refs: str) -> dict[str, list[dict[str, str]]]:
    return {"ingredients": [{"ref": ref} for ref in refs]}


def domains_of(cooked) -> list[str]:
    return [one.domain for one in cooked.evidence.selection.selected]


def reasons(cooked) -> dict[str, str]:
    return {one.domain: one.reason for one in cooked.evidence.selection.left_out}


def stored(world: ToyRegistry, cooked) -> dict[str, torch.Tensor]:
    return load_tensors(world.blobs.read(world.row(cooked.soup_id).weights_blob))


@pytest.fixture
def strangers(verbs) -> ToyRegistry:
    """Three bottleneck adapters of one structure, each from a start that nobody knows."""
    for seed, name in enumerate(("law", "code", "zoo")):
        verbs.ready(f"acme/{name}", seed=seed, provenance=UNKNOWN)
    return verbs


@pytest.fixture
def loras(verbs) -> ToyRegistry:
    """Three LoRAs of unknown starts, other ranks and other modules."""
    for seed, (name, config) in enumerate({"law": LORA, "code": WIDE_LORA, "zoo": LORA}.items()):
        verbs.ready(f"acme/{name}", seed=seed, config=config, provenance=UNKNOWN)
    return verbs


class TestByHand:
    def test_unknown_origins_are_concatenated_and_all_is_told(self, strangers):
        cooked = strangers.cook(recipe=by_hand("acme/law", "acme/code"), name="acme/both")
        assert cooked.recipe.mixing == ConcatMixing()
        assert cooked.reason.startswith("2 adapters by concat: exact, and averaging was not possible: The initialis")
        row, report = strangers.row(cooked.soup_id), cooked.report
        assert row.config.bottleneck == 4
        assert row.provenance.init_source == "unknown"
        assert row.card.metadata == {"mixing": "concat"}
        assert (report.method, report.width_in, report.width_out, report.members) == ("concat", (2, 2), 4, 2)
        assert report.residual < 1e-6
        assert report.relative_cost > 1
        assert row.parameters == report.parameters == sum(t.numel() for t in stored(strangers, cooked).values())
        assert cooked.digest == adapter_digest(SHAPE.fingerprint, row.config, stored(strangers, cooked))

    def test_a_concatenation_of_one_known_start_has_an_unknown_one(self, verbs):
        for seed, name in enumerate(("acme/a", "acme/b")):
            verbs.push(name, seed=seed)
        cooked = verbs.cook(recipe=by_hand("acme/a", "acme/b"), mixing={"method": "concat"})
        assert cooked.reason == "2 adapters by concat."
        assert verbs.row(cooked.soup_id).provenance.init_hash is None
        averaged = verbs.cook(recipe=by_hand("acme/a", "acme/b"))
        assert averaged.recipe.mixing == AverageMixing()
        assert verbs.row(averaged.soup_id).provenance == INIT
        assert averaged.report.residual > 0.01
        assert averaged.report.relative_cost == 1.0

    def test_the_recipe_knows_neither_auto_nor_max_width(self, strangers):
        recipe = by_hand("acme/law", "acme/code")
        cooked = [
            strangers.cook(recipe=recipe, **how)
            for how in ({}, {"mixing": {"method": "concat"}}, {"max_width": 4}, {"mixing": {"scale": 1}})
        ]
        assert len({one.recipe_digest for one in cooked}) == 1
        assert [one.cached for one in cooked] == [False, True, True, True]
        assert cooked[0].report == cooked[1].report
        assert "auto" not in cooked[0].recipe.model_dump_json()

    def test_lost_bytes_are_made_again_to_the_last_bit(self, loras):
        first = loras.cook(recipe=by_hand("acme/law", "acme/code"))
        blob = loras.row(first.soup_id).weights_blob
        data = loras.blobs.read(blob)
        loras.blobs.delete(blob)
        again = loras.cook(recipe=by_hand("acme/code", "acme/law"))
        assert (again.cached, again.digest) == (False, first.digest)
        assert loras.blobs.read(blob) == data

    def test_a_report_of_before_is_kept_as_it_was(self, strangers, monkeypatch):
        """Soups that were cooked before widths and residuals were recorded go on being served."""
        from registry.cook import mix as module

        old = MixReport(method="concat", members=2, weights=("0.5", "0.5"), parameters=1, size_bytes=4, relative_cost=1)
        monkeypatch.setattr(module, "report_of", lambda *_, **__: old)
        strangers.cook(recipe=by_hand("acme/law", "acme/code"))
        monkeypatch.undo()
        again = strangers.cook(recipe=by_hand("acme/law", "acme/code"))
        assert (again.cached, again.report) == (True, old)

    def test_a_soup_is_an_ingredient_like_any_other(self, strangers):
        strangers.cook(recipe=by_hand("acme/law", "acme/code"), name="acme/both")
        cooked = strangers.cook(recipe=by_hand("acme/both", "acme/zoo"))
        assert (cooked.report.width_in, cooked.report.width_out) in (((4, 2), 6), ((2, 4), 6))
        assert cooked.report.residual < 1e-6

    def test_wider_than_max_width(self, strangers):
        with pytest.raises(Incompatible, match=r"would be 6 wide \(2, 2, 2\), and max_width is 5") as caught:
            strangers.cook(recipe=by_hand("acme/law", "acme/code", "acme/zoo"), max_width=5)
        assert any("unknown" in problem for problem in caught.value.problems)

    def test_several_methods(self, strangers):
        strangers.push("acme/lora", config=LORA, seed=9)
        with pytest.raises(
            Incompatible, match=r"The methods differ: acme/law@1 has bottleneck; acme/lora@1 has lora\."
        ):
            strangers.cook(recipe=by_hand("acme/law", "acme/lora"))

    def test_verifying_scores_the_soup_in_its_own_shape(self, strangers):
        seen, real = [], strangers.tiny.score

        def score(some, adapter, **told):
            if adapter is not None:
                seen.append((adapter.config, set(adapter.load())))
            return real(some, adapter, **told)

        strangers.tiny.score = score
        strangers.cook(recipe=by_hand("acme/law", "acme/code"), sample=texts(law=30), verify=True)
        ((config, names),) = seen
        assert config == CONFIG.model_copy(update={"bottleneck": 4})
        assert "layers.1.ffn.down.weight" in names

    @pytest.mark.parametrize("method", ["average", "concat"])
    def test_other_bytes_than_before_are_our_mistake(self, strangers, monkeypatch, method):
        from dataclasses import replace

        from registry.cook import mix as module

        how = {"method": method, **({"assume_same_init": True} if method == "average" else {})}
        recipe = by_hand("acme/law", "acme/code")
        strangers.blobs.delete(strangers.row(strangers.cook(recipe=recipe, mixing=how).soup_id).weights_blob)
        right = module.MIXINGS[method]

        def wrong(parts, mixing):
            return {name: tensor + 1 for name, tensor in right.mix(parts, mixing).items()}

        monkeypatch.setitem(module.MIXINGS, method, replace(right, mix=wrong))
        with pytest.raises(Internal, match="before and"):
            strangers.cook(recipe=recipe, mixing=how)


class TestLora:
    def test_one_alone_is_itself_bit_for_bit(self, loras):
        blobs = set(loras.blobs.digests())
        cooked = loras.cook(recipe=by_hand("acme/code"), verify=True, sample=None)
        assert (cooked.model, cooked.created) == ("acme/code@1", False)
        assert cooked.report.residual == 0.0
        assert cooked.report.relative_cost == 1.0
        assert stored(loras, cooked).keys() == load_tensors(weights(1, WIDE_LORA)).keys()
        assert all(one.equal(load_tensors(weights(1, WIDE_LORA))[n]) for n, one in stored(loras, cooked).items())
        assert set(loras.blobs.digests()) == blobs

    def test_a_pool_of_unknown_origins_is_fitted_selected_from_and_cooked(self, loras):
        cooked = loras.cook(sample=texts(law=30, code=30), pool={"method": "lora"})
        assert set(domains_of(cooked)) == {"law", "code"}
        assert cooked.reason == "2 adapters by concat: LoRAs are mixed exactly, whatever they started from."
        assert (set(cooked.report.width_in), cooked.report.width_out) == ({2, 3}, 5)
        config = loras.row(cooked.soup_id).config
        for path, module in config.modules().items():
            assert module.rank == module.alpha == (5 if path.endswith("c_attn") else 3)

    def test_the_update_is_the_weighted_sum(self, loras):
        cooked = loras.cook(recipe={"ingredients": [{"ref": "acme/law"}, {"ref": "acme/code", "weight": 3}]})
        path = "base_model.model.transformer.h.0.attn.c_attn"

        def product(tensors) -> np.ndarray:
            return (tensors[f"{path}.lora_B.weight"].double() @ tensors[f"{path}.lora_A.weight"].double()).numpy()

        law, code = load_tensors(weights(0, LORA)), load_tensors(weights(1, WIDE_LORA))
        exact = 0.25 * (4.0 / 2) * product(law) + 0.75 * (1.0 / 3**0.5) * product(code)
        np.testing.assert_allclose(product(stored(loras, cooked)), exact, atol=1e-5)

    def test_the_average_of_factors_is_made_on_request_with_its_residual(self, loras):
        recipe = by_hand("acme/law", "acme/zoo")
        with pytest.raises(Incompatible, match="Mix by 'concat', which"):
            loras.cook(recipe=recipe, mixing={"method": "average"})
        cooked = loras.cook(recipe=recipe, mixing={"method": "average", "assume_same_init": True})
        assert cooked.report.residual > 0.1
        assert (cooked.report.width_out, cooked.report.relative_cost) == (2, 1.0)
        assert loras.row(cooked.soup_id).config == LORA

    def test_half_precision_becomes_single(self, loras):
        loras.push("acme/half", config=LORA, files={WEIGHTS: inline(weights(8, LORA, torch.float16))})
        cooked = loras.cook(recipe=by_hand("acme/half", "acme/law"))
        assert loras.row(cooked.soup_id).dtype == "F32"


class TestPools:
    def test_the_best_decides_the_method_of_a_mixed_pool(self, strangers):
        strangers.ready("acme/low", seed=10, config=LORA)
        strangers.ready("acme/rank", seed=11, config=WIDE_LORA)
        of_bottlenecks = strangers.cook(sample=texts(law=40, low=30, rank=25, zoo=20))
        assert domains_of(of_bottlenecks) == ["law", "zoo"]
        expected = (
            "Cannot be mixed with acme/law@1: The methods differ: acme/law@1 has bottleneck; acme/low@1 has lora."
        )
        assert reasons(of_bottlenecks)["low"] == expected
        of_loras = strangers.cook(sample=texts(low=40, law=30, rank=25, zoo=20))
        assert domains_of(of_loras) == ["low", "rank"]
        assert set(reasons(of_loras)) == {"law", "zoo", "code"}

    def test_what_cannot_be_mixed_leaves_before_the_cap(self, strangers):
        strangers.ready("acme/structure", seed=12, config=OTHER_CONFIG)
        cooked = strangers.cook(sample=texts(law=40, structure=30, zoo=20, code=15), options={"max_ingredients": 2})
        assert domains_of(cooked) == ["law", "zoo"]
        assert "'structure' differ" in reasons(cooked)["structure"]
        assert reasons(cooked)["code"] == "Passes, but 2 better ones are taken already."

    def test_of_many_that_cannot_be_mixed_the_best_ranked_are_named(self, strangers):
        for number in range(40):
            strangers.ready(f"acme/n{number:02}", seed=100 + number, text="law", config=LORA, provenance=UNKNOWN)
        spec = {"kind": "cosine", "encoder": "base", "threshold": -1}
        cooked = strangers.cook(sample=texts(zoo=30), selector=spec, verify=False)
        best, selection = cooked.evidence.selection.selected[0], cooked.evidence.selection
        assert (best.domain, len(selection.selected), len(selection.left_out)) == ("zoo", 3, LISTED)
        assert selection.more_left_out == {f"Cannot be mixed with {best.ref}.": 40 - LISTED}
        assert all(one.reason.startswith(f"Cannot be mixed with {best.ref}: The m") for one in selection.left_out)
        assert set(selection.scores) == {one.domain for one in (*selection.selected, *selection.left_out)}

    def test_known_and_unknown_starts_make_one_exact_soup(self, strangers):
        strangers.ready("acme/known", seed=10)
        strangers.ready("acme/other", seed=11, provenance=OTHER_INIT)
        cooked = strangers.cook(sample=texts(known=40, other=30, law=20))
        assert domains_of(cooked) == ["known", "other", "law"]
        assert cooked.recipe.mixing == ConcatMixing()

    @pytest.mark.parametrize("how", [{}, {"mixing": {"method": "concat"}}])
    def test_the_lowest_ranked_leave_beyond_max_width_with_the_numbers(self, strangers, how):
        sample = texts(zoo=40, law=30, code=20)
        cooked = strangers.cook(sample=sample, max_width=5, **how)
        assert domains_of(cooked) == ["zoo", "law"]
        assert [one.weight for one in cooked.evidence.selection.selected] == ["0.571428571", "0.428571429"]
        assert [one.stability for one in cooked.evidence.selection.selected] == pytest.approx([1, 0.9], abs=0.09)
        assert cooked.report.width_out == 4
        left = reasons(cooked)
        assert set(left) == {"code"}
        assert "would be 6 wide (2, 2, 2), and max_width is 5" in left["code"]
        assert cooked.evidence.selection.reason.endswith("2 fit into max_width 5.")
        assert strangers.cook(sample=sample, max_width=1, **how).model == "acme/zoo@1"

    def test_an_average_is_no_wider_than_its_ingredients(self, verbs):
        for seed, name in enumerate(("law", "code")):
            verbs.ready(f"acme/{name}", seed=seed)
        cooked = verbs.cook(sample=texts(law=30, code=30), max_width=1)
        assert (cooked.recipe.mixing, cooked.report.width_out) == (AverageMixing(), 2)

    def test_houlsby_adapters_that_train_norms_leave_each_other_out(self, verbs):
        trained = BottleneckConfig(structure="houlsby", bottleneck=2, activation="gelu")
        plain = trained.model_copy(update={"trained_norms": False})
        for seed, (name, config) in enumerate({"law": trained, "code": trained, "plain": plain}.items()):
            draw = np.random.default_rng(seed)
            tensors = {
                name: torch.from_numpy(draw.normal(size=size).astype(np.float32))
                for name, size in expected_tensors(config, SHAPE).items()
            }
            files = {WEIGHTS: inline(save_tensors(tensors))}
            verbs.ready(f"acme/{name}", config=config, provenance=UNKNOWN, files=files)
        cooked = verbs.cook(sample=texts(law=40, code=30, plain=20))
        assert cooked.model == "acme/law@1"
        assert "The trained LayerNorms differ" in reasons(cooked)["code"]
        assert "'trained_norms' differ" in reasons(cooked)["plain"]

    def test_uniform_soups_keep_the_average_of_many(self, strangers):
        for seed, name in enumerate(("a", "b"), start=20):
            strangers.ready(f"acme/{name}", seed=seed)
        uniform = strangers.cook(sample=texts(law=30), selector={"kind": "uniform"})
        assert (set(domains_of(uniform)), uniform.recipe.mixing) == ({"a", "b"}, AverageMixing())
        every = strangers.cook(sample=texts(law=30), selector={"kind": "uniform"}, mixing={"method": "concat"})
        assert (len(domains_of(every)), every.report.width_out) == (5, 10)

    def test_uniform_of_strangers_is_their_exact_mean(self, strangers):
        cooked = strangers.cook(sample=texts(law=30), selector={"kind": "uniform"})
        assert (len(domains_of(cooked)), cooked.report.width_out) == (3, 6)

    def test_bytes_that_lie_are_never_mixed(self, strangers):
        row = strangers.row(strangers.cook(recipe=by_hand("acme/law")).soup_id)
        strangers.blobs._stored[row.weights_blob] = save_tensors(load_tensors(weights(77)))
        with pytest.raises(DamagedBlob, match="not those of its digest"):
            strangers.cook(recipe=by_hand("acme/law", "acme/code"))


@pytest.mark.parametrize(
    ("mixing", "expected"),
    [
        ({}, AutoMixing()),
        ({"scale": 2}, AutoMixing(scale="2")),
        ({"method": "average"}, AverageMixing()),
        ({"method": "concat", "scale": "0.50"}, ConcatMixing(scale="0.5")),
    ],
)
def test_a_mixing_that_names_no_method_is_auto(mixing, expected):
    request = CookRequest.model_validate({"recipe": by_hand("acme/a"), "mixing": mixing})
    assert request.mixing == expected


@pytest.mark.parametrize(
    "fields",
    [
        {"mixing": {"method": "concat", "assume_same_init": True}},
        {"mixing": {"method": "blend"}},
        {"mixing": {"method": None}},
        {"mixing": "concat"},
        {"mixing": []},
        {"max_width": 0},
        {"max_width": 65537},
        {"mixing": {"scale": "0"}},
    ],
)
def test_requests_that_are_none(fields):
    with pytest.raises(ValueError, match="validation error"):
        CookRequest.model_validate({"recipe": by_hand("acme/a"), **fields})


BEYOND = {"method": "task_arithmetic", "scale": 1.5}
SITES = {f"layers.{layer}.ffn": f"0.{layer + 3}" for layer in range(2)}


class TestRecompressed:
    def test_bottlenecks_are_as_wide_as_one(self, strangers):
        self.as_wide_as_one(strangers)

    def test_loras_are_as_wide_as_one(self, loras):
        self.as_wide_as_one(loras)

    def as_wide_as_one(self, verbs) -> None:
        """And the report tells how far off it is at which site."""
        cooked = verbs.cook(recipe=by_hand("acme/law", "acme/zoo"), mixing={"method": "recompress"}, name="acme/one")
        exact = verbs.cook(recipe=by_hand("acme/law", "acme/zoo"), mixing={"method": "concat"})
        report, row = cooked.report, verbs.row(cooked.soup_id)
        assert cooked.recipe.mixing == RecompressMixing()
        assert (report.width_out, report.relative_cost) == (report.width_in[0], 1.0)
        assert exact.report.residual < 1e-6 < report.residual < 1
        assert report.residuals
        assert all(0 <= one < 1 for one in report.residuals.values())
        assert exact.report.residuals is None
        assert row.provenance.init_source == "unknown"
        assert row.card.metadata == {"mixing": "recompress"}

    def test_lost_bytes_are_made_again_to_the_last_bit(self, loras):
        mixing = {"method": "recompress", "width": 1, "seed": 3}
        first = loras.cook(recipe=by_hand("acme/law", "acme/code"), mixing=mixing)
        blob = loras.row(first.soup_id).weights_blob
        data = loras.blobs.read(blob)
        loras.blobs.delete(blob)
        again = loras.cook(recipe=by_hand("acme/code", "acme/law"), mixing=mixing)
        assert (again.cached, again.digest, again.report) == (False, first.digest, first.report)
        assert loras.blobs.read(blob) == data

    def test_one_adapter_is_itself_or_a_narrower_soup(self, strangers):
        alone = strangers.cook(recipe=by_hand("acme/law"), mixing={"method": "recompress"})
        assert alone.model == "acme/law@1"
        narrow = strangers.cook(recipe=by_hand("acme/law"), mixing={"method": "recompress", "width": 1})
        assert narrow.created
        assert strangers.row(narrow.soup_id).config.bottleneck == 1

    def test_recipes_with_layers_are_recompressed(self, strangers):
        rows = [{"ref": ref, "weight": 0.7, "layers": SITES} for ref in ("acme/law", "acme/code")]
        cooked = strangers.cook(recipe={"ingredients": rows}, mixing={"method": "recompress"})
        assert cooked.report.width_out == 2
        assert all(one.layers == SITES for one in cooked.recipe.ingredients)

    def test_of_a_sample(self, strangers):
        cooked = strangers.cook(
            sample=texts(law=30), selector={"kind": "uniform"}, mixing={"method": "recompress"}, verify=False
        )
        assert cooked.report.members == 3
        assert cooked.report.width_out == 2


class TestOtherAverages:
    @pytest.mark.parametrize("method", ["align", "ties", "dare", "slerp"])
    def test_lost_bytes_are_made_again_to_the_last_bit(self, verbs, method):
        for seed, name in enumerate(("acme/law", "acme/code")):
            verbs.push(name, seed=seed)
        first = verbs.cook(recipe=by_hand("acme/law", "acme/code"), mixing={"method": method})
        row = verbs.row(first.soup_id)
        assert (first.report.width_out, first.report.relative_cost, first.recipe.mixing.method) == (2, 1.0, method)
        assert (row.provenance == INIT) == (method != "align")
        data = verbs.blobs.read(row.weights_blob)
        verbs.blobs.delete(row.weights_blob)
        again = verbs.cook(recipe=by_hand("acme/code", "acme/law"), mixing={"method": method})
        assert (again.cached, again.digest, again.report) == (False, first.digest, first.report)
        assert verbs.blobs.read(row.weights_blob) == data
        assert verbs.cook(recipe=by_hand("acme/law"), mixing={"method": method}).model == "acme/law@1"

    def test_strangers_are_aligned_and_by_ties_refused_with_what_helps(self, strangers):
        aligned = strangers.cook(recipe=by_hand("acme/law", "acme/zoo"), mixing={"method": "align"})
        averaged = strangers.cook(recipe=by_hand("acme/law", "acme/zoo"), mixing={"assume_same_init": True})
        assert aligned.report.residual < averaged.report.residual
        with pytest.raises(Incompatible, match=r"set mixing\.assume_same_init"):
            strangers.cook(recipe=by_hand("acme/law", "acme/zoo"), mixing={"method": "ties"})

    def test_slerp_of_a_sample_takes_the_best_two(self, verbs):
        for seed, name in enumerate(("law", "code", "zoo")):
            verbs.ready(f"acme/{name}", seed=seed)
        cooked = verbs.cook(
            sample=texts(law=30), selector={"kind": "uniform"}, mixing={"method": "slerp"}, verify=False
        )
        assert cooked.report.members == 2


class TestTaskArithmetic:
    @pytest.fixture
    def started(self, verbs) -> ToyRegistry:
        """Two adapters of one start that a seed draws, and that one says."""
        first = create(CONFIG, SHAPE, seed=5, init="zero_up").state_dict()
        known = Provenance(init_hash=init_hash(first), init_source="declared", init_seed=5)
        verbs.push("acme/law", seed=1, provenance=known)
        verbs.push("acme/code", seed=2, provenance=known.model_copy(update={"init_seed": None}))
        return verbs

    def test_the_recipe_names_the_start_and_gives_the_same_bytes(self, started):
        first = started.cook(recipe=by_hand("acme/law", "acme/code"), mixing=BEYOND)
        assert first.recipe.mixing == TaskArithmeticMixing(scale="1.5", init="zero_up", init_seed=5)
        row = started.row(first.soup_id)
        assert row.provenance.init_hash == started.named("acme/law").provenance.init_hash
        data = started.blobs.read(row.weights_blob)
        started.blobs.delete(row.weights_blob)
        named = first.recipe.mixing.model_dump(mode="json")
        again = started.cook(recipe=by_hand("acme/code", "acme/law"), mixing=named)
        assert (again.cached, again.recipe_digest, again.report) == (False, first.recipe_digest, first.report)
        assert started.blobs.read(row.weights_blob) == data
        assert started.cook(recipe=by_hand("acme/law"), mixing={"method": "task_arithmetic"}).model == "acme/law@1"

    def test_nothing_can_be_taken_away_from_an_adapter_but_what_it_learnt(self, started):
        less = started.cook(recipe=by_hand("acme/law"), mixing={**BEYOND, "scale": -0.5})
        first = create(CONFIG, SHAPE, seed=5, init="zero_up").state_dict()
        own = load_tensors(started.blobs.read(started.named("acme/law").weights_blob))
        for name, tensor in stored(started, less).items():
            assert torch.allclose(tensor, first[name] - 0.5 * (own[name] - first[name]), atol=1e-6), name

    def test_another_start_than_the_hash_says_is_refused(self, started):
        with pytest.raises(Incompatible, match="neither near_identity, linear, zero_up of seed 6 gives those of hash"):
            started.cook(recipe=by_hand("acme/law", "acme/code"), mixing={**BEYOND, "init_seed": 6})

    def test_loras_are_put_side_by_side(self, loras):
        found = loras.cook(recipe=by_hand("acme/law", "acme/zoo"), mixing=BEYOND)
        exact = loras.cook(recipe=by_hand("acme/law", "acme/zoo"), mixing={"method": "concat", "scale": 1.5})
        assert found.digest == exact.digest
        assert found.recipe_digest != exact.recipe_digest
        assert found.report.residual < 1e-6


class TestWeightsByLayer:
    def recipe(self, *refs: str, **first: object) -> dict[str, object]:
        rows = [{"ref": ref, "weight": 0.4 + number, "layers": SITES} for number, ref in enumerate(refs)]
        return {"ingredients": [{**rows[0], **first}, *rows[1:]]}

    def test_a_recipe_is_kept_as_it_was_given_and_gives_the_same_soup_again(self, strangers):
        first = strangers.cook(recipe=self.recipe("acme/law", "acme/code"))
        assert first.recipe.mixing == ConcatMixing()
        assert sorted(one.weight for one in first.recipe.ingredients) == ["0.4", "1.4"]
        assert {tuple(one.layers.items()) for one in first.recipe.ingredients} == {tuple(SITES.items())}
        again = strangers.cook(
            recipe={
                "ingredients": [
                    {"ref": one.digest, "weight": float(one.weight), "layers": one.layers}
                    for one in first.recipe.ingredients
                ]
            }
        )
        assert (again.digest, again.recipe_digest, again.cached) == (first.digest, first.recipe_digest, True)

    def test_one_adapter_with_layers_is_stored_as_a_soup(self, strangers):
        cooked = strangers.cook(recipe=self.recipe("acme/law"))
        assert cooked.model != "acme/law@1"
        assert cooked.created

    @pytest.mark.parametrize(
        ("first", "said"),
        [
            ({"layers": {"layers.0.ffn": 1}}, "of acme/law@1 lack layers.1.ffn; it needs a factor for each of its 2"),
            ({"layers": {**SITES, "layers.9.ffn": 1}}, "name layers.9.ffn, where it has nothing"),
            ({"weight": 1e12}, "weights must be a finite number of at most 1000"),
            ({"ref": "acme/code"}, "acme/code is in the recipe twice"),
        ],
    )
    def test_what_is_wrong_with_them_is_told(self, strangers, first, said):
        with pytest.raises(InvalidRecipe, match=re.escape(said)):
            strangers.cook(recipe=self.recipe("acme/law", "acme/code", **first))

    def test_an_average_of_them_is_refused(self, strangers):
        with pytest.raises(Incompatible, match="factors by layer, which only 'concat' and 'recompress' can keep"):
            strangers.cook(recipe=self.recipe("acme/law", "acme/code"), mixing={"method": "average"})
