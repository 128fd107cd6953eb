"""Cook with `auto` and `concat`: unknown origins, LoRAs, mixed pools, widths, and what is stored and told of them."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch

from registry.adapters import create
from registry.adapters.weights import adapter_digest, init_hash, load_tensors
from registry.cook import mix
from registry.errors import Incompatible, Internal, InvalidRecipe
from registry.mixing import MIXINGS
from registry.selectors.ranking import LISTED
from registry.spec import (
    AdapterConfig,
    AutoMixing,
    AverageMixing,
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
    SHAPE,
    WIDE_LORA,
    ToyRegistry,
    assert_rebuilt,
    by_hand,
    domains_of,
    passages,
    reasons,
)

ON_DATABASES = ("sqlite",)  # whatever they ask a catalogue, `test_cook` and its own tests ask one of each kind

UNKNOWN: dict[str, str] = {}


def texts(**counts: int) -> dict[str, list[str]]:
    """A sample with so many passages of each domain."""
    return {"texts": [text for domain, count in counts.items() for text in passages(domain, count, seed=7)]}


def stored(world: ToyRegistry, cooked) -> dict[str, torch.Tensor]:
    return load_tensors(world.blobs.read(world.row(cooked.soup_id).weights_blob))


@pytest.fixture
def strangers(ready) -> ToyRegistry:
    """Three bottleneck adapters of one structure, each from a start that nobody knows."""
    return ready("law", "code", "zoo", one_start=False)


# --- by hand --------------------------------------------------------------------------------------


def test_unknown_origins_are_concatenated_and_all_is_told(strangers):
    cooked = strangers.cook(recipe=by_hand("acme/law", "acme/code"), name="acme/both")
    assert cooked.recipe.mixing == ConcatMixing()
    assert cooked.reason.startswith("2 adapters by concat: exact, and averaging was not possible: The initialis")
    row, report = strangers.row(cooked.soup_id), cooked.report
    assert (row.config.bottleneck, row.provenance.init_source) == (4, "unknown")
    assert row.card.metadata == {"mixing": "concat"}
    assert (report.method, report.width_in, report.width_out, report.members) == ("concat", (2, 2), 4, 2)
    assert report.residual < 1e-6 < 1 < report.relative_cost
    assert row.parameters == report.parameters == sum(t.numel() for t in stored(strangers, cooked).values())
    assert cooked.digest == adapter_digest(SHAPE.fingerprint, row.config, stored(strangers, cooked))


def test_a_concatenation_of_one_known_start_has_an_unknown_one(verbs):
    verbs.push_all("acme/a", "acme/b")
    cooked = verbs.cook(recipe=by_hand("acme/a", "acme/b"), mixing={"method": "concat"})
    assert cooked.reason == "2 adapters by concat."
    assert verbs.row(cooked.soup_id).provenance.init_hash is None
    averaged = verbs.cook(recipe=by_hand("acme/a", "acme/b"), max_width=1)  # an average is no wider than its parts
    assert averaged.recipe.mixing == AverageMixing()
    assert verbs.row(averaged.soup_id).provenance == INIT
    assert averaged.report.residual > 0.01
    assert (averaged.report.relative_cost, averaged.report.width_out) == (1.0, 2)


def test_the_recipe_knows_neither_auto_nor_max_width(strangers):
    recipe = by_hand("acme/law", "acme/code")
    cooked = [
        strangers.cook(recipe=recipe, **fields)
        for fields in ({}, {"mixing": {"method": "concat"}}, {"max_width": 4}, {"mixing": {"scale": 1}})
    ]
    assert len({answer.recipe_digest for answer in cooked}) == 1
    assert [answer.cached for answer in cooked] == [False, True, True, True]
    assert cooked[0].report == cooked[1].report
    assert "auto" not in cooked[0].recipe.model_dump_json()


def test_a_report_of_an_earlier_version_is_kept_as_it_was(strangers, monkeypatch):
    """Soups that were cooked before widths and residuals were recorded are still served."""
    old = MixReport(method="concat", members=2, weights=("0.5", "0.5"), parameters=1, size_bytes=4, relative_cost=1)
    with monkeypatch.context() as patch:
        patch.setattr(mix, "report_of", lambda *_, **__: old)
        strangers.cook(recipe=by_hand("acme/law", "acme/code"))
    second = strangers.cook(recipe=by_hand("acme/law", "acme/code"))
    assert (second.cached, second.report) == (True, old)


@pytest.mark.parametrize(
    ("refs", "fields", "sentence"),
    [
        (("law", "code", "zoo"), {"max_width": 5}, r"would be 6 wide \(2, 2, 2\), and max_width is 5.*unknown"),
        (("law", "lora"), {}, r"The methods differ: acme/law@1 has bottleneck; acme/lora@1 has lora\."),
        (("law", "zoo"), {"mixing": {"method": "ties"}}, r"set mixing\.assume_same_init"),
        (("lora", "lora2"), {"mixing": {"method": "average"}}, "Mix by 'concat', which"),
    ],
)
def test_what_cannot_be_mixed_is_refused_with_the_reason(strangers, refs, fields, sentence):
    strangers.push_all("acme/lora", "acme/lora2", config=LORA, provenance=UNKNOWN)
    with pytest.raises(Incompatible) as refused:
        strangers.cook(recipe=by_hand(*(f"acme/{ref}" for ref in refs)), **fields)
    assert re.search(sentence, " ".join([refused.value.message, *refused.value.problems]))


def test_verifying_scores_the_soup_in_its_own_shape(strangers):
    scored, real = [], strangers.tiny.score

    def score(texts, adapter, **options):
        if adapter is not None:
            scored.append((adapter.config.bottleneck, "layers.1.ffn.down.weight" in adapter.load()))
        return real(texts, adapter, **options)

    strangers.tiny.score = score
    strangers.cook(recipe=by_hand("acme/law", "acme/code"), sample=texts(law=30), verify=True)
    assert scored == [(4, True)]


def test_a_lost_soup_that_lapack_makes_otherwise_becomes_a_new_version(strangers, monkeypatch):
    fields = {"recipe": by_hand("acme/law", "acme/code"), "mixing": {"method": "recompress"}, "name": "acme/narrow"}
    first = strangers.cook(**fields)
    strangers.blobs.delete(strangers.row(first.soup_id).weights_blob)
    here = MIXINGS["recompress"]

    def elsewhere(ingredients, mixing):
        return {name: tensor * (1 + 1e-6) for name, tensor in here.mix(ingredients, mixing).items()}

    monkeypatch.setitem(MIXINGS, "recompress", replace(here, mix=elsewhere))
    second = strangers.cook(**fields)
    assert (second.model, second.recipe_digest) == ("acme/narrow@2", first.recipe_digest)
    third = strangers.cook(**fields)
    assert (third.cached, third.digest, third.report) == (True, second.digest, second.report)
    assert "depend on the machine" in second.report.notes[0]


@pytest.mark.parametrize("method", ["average", "recompress"])
def test_other_bytes_than_before_are_our_mistake(strangers, monkeypatch, method):
    mixing_request = {"method": method, **({"assume_same_init": True} if method == "average" else {})}
    recipe = by_hand("acme/law", "acme/code")
    strangers.blobs.delete(strangers.row(strangers.cook(recipe=recipe, mixing=mixing_request).soup_id).weights_blob)
    right = MIXINGS[method]

    def wrong(ingredients, mixing):
        return {name: tensor + 1 for name, tensor in right.mix(ingredients, mixing).items()}

    monkeypatch.setitem(MIXINGS, method, replace(right, mix=wrong))
    with pytest.raises(Internal, match="before and"):
        strangers.cook(recipe=recipe, mixing=mixing_request)


def test_a_pool_of_unknown_origins_is_fitted_selected_from_and_cooked(verbs):
    """Two LoRAs of unknown starts, other ranks and other modules."""
    for seed, (name, config) in enumerate({"law": LORA, "code": WIDE_LORA}.items()):
        verbs.ready(f"acme/{name}", seed=seed, config=config, provenance=UNKNOWN)
    cooked = verbs.cook(sample=texts(law=30, code=30), pool={"method": "lora"})
    assert set(domains_of(cooked)) == {"law", "code"}
    assert cooked.reason == "2 adapters by concat: LoRAs are mixed exactly, whatever they started from."
    assert (set(cooked.report.width_in), cooked.report.width_out) == ({2, 3}, 5)
    for path, module in verbs.row(cooked.soup_id).config.modules().items():
        assert module.rank == module.alpha == (5 if path.endswith("c_attn") else 3)


# --- pools ----------------------------------------------------------------------------------------


def test_the_best_decides_the_method_of_a_mixed_pool(strangers):
    strangers.ready("acme/low", seed=10, config=LORA)
    strangers.ready("acme/rank", seed=11, config=WIDE_LORA)
    of_bottlenecks = strangers.cook(sample=texts(law=40, low=30, rank=25, zoo=20))
    assert domains_of(of_bottlenecks) == ["law", "zoo"]
    assert (
        reasons(of_bottlenecks)["low"]
        == "Cannot be mixed with acme/law@1: The methods differ: acme/law@1 has bottleneck; acme/low@1 has lora."
    )
    of_loras = strangers.cook(sample=texts(low=40, law=30, rank=25, zoo=20))
    assert domains_of(of_loras) == ["low", "rank"]
    assert set(reasons(of_loras)) == {"law", "zoo", "code"}


def test_of_many_that_cannot_be_mixed_the_best_ranked_are_named(strangers):
    for number in range(LISTED + 2):
        strangers.ready(f"acme/n{number:02}", seed=100 + number, text="law", config=LORA, provenance=UNKNOWN)
    spec = {"kind": "cosine", "encoder": "base", "threshold": -1}
    cooked = strangers.cook(sample=texts(zoo=30), selector=spec, verify=False)
    best, selection = cooked.evidence.selection.selected[0], cooked.evidence.selection
    assert (best.domain, len(selection.selected), len(selection.left_out)) == ("zoo", 3, LISTED)
    assert selection.more_left_out == {f"Cannot be mixed with {best.ref}.": 2}
    assert all(entry.reason.startswith(f"Cannot be mixed with {best.ref}: The m") for entry in selection.left_out)
    assert set(selection.scores) == {entry.domain for entry in (*selection.selected, *selection.left_out)}


@pytest.mark.parametrize("fields", [{}, {"mixing": {"method": "concat"}}])
def test_the_lowest_ranked_leave_beyond_max_width_with_the_numbers(strangers, fields):
    sample = texts(zoo=40, law=30, code=20)
    cooked = strangers.cook(sample=sample, max_width=5, **fields)
    assert domains_of(cooked) == ["zoo", "law"]
    assert [entry.weight for entry in cooked.evidence.selection.selected] == ["0.571428571", "0.428571429"]
    assert [entry.stability for entry in cooked.evidence.selection.selected] == pytest.approx([1, 0.9], abs=0.09)
    assert cooked.report.width_out == 4
    left_out = reasons(cooked)
    assert set(left_out) == {"code"}
    assert "would be 6 wide (2, 2, 2), and max_width is 5" in left_out["code"]
    assert cooked.evidence.selection.reason.endswith("2 fit into max_width 5.")
    assert strangers.cook(sample=sample, max_width=1, **fields).model == "acme/zoo@1"


@pytest.mark.parametrize(
    ("mixing", "members", "width"),
    [
        ({}, 3, 6),
        ({"method": "recompress"}, 3, 2),
        ({"method": "slerp", "assume_same_init": True}, 2, 2),  # of two at most: the best
    ],
)
def test_uniform_of_strangers(strangers, mixing, members, width):
    cooked = strangers.cook(sample=texts(law=30), selector={"kind": "uniform"}, mixing=mixing)
    assert (cooked.report.members, cooked.report.width_out) == (members, width)


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
    assert CookRequest.model_validate({"recipe": by_hand("acme/a"), "mixing": mixing}).mixing == expected


BEYOND = {"method": "task_arithmetic", "scale": 1.5}
SITES = {f"layers.{layer}.ffn": f"0.{layer + 3}" for layer in range(2)}


@pytest.mark.parametrize(
    ("config", "mixing"),
    [
        (LORA, {"method": "concat"}),
        (CONFIG, {"method": "average"}),
        (LORA, {"method": "recompress", "width": 1, "seed": 3}),
        *[(CONFIG, {"method": method}) for method in ("align", "ties", "dare", "slerp")],
        (CONFIG, BEYOND),
        (CONFIG, {**BEYOND, "init": "zero_up", "init_seed": 5}),
    ],
    ids=lambda value: value.get("method") if isinstance(value, dict) else "",
)
def test_lost_bytes_are_made_again_to_the_last_bit(verbs, config, mixing):
    """Also where the recipe names its ingredients in another order."""
    two_of_one_start(verbs, config)
    first = verbs.cook(recipe=by_hand("acme/law", "acme/code"), mixing=mixing)
    row, method = verbs.row(first.soup_id), mixing["method"]
    assert first.recipe.mixing.method == method
    if method == "task_arithmetic":
        assert first.recipe.mixing == TaskArithmeticMixing(scale="1.5", init="zero_up", init_seed=5)
    if config == CONFIG:
        assert (first.report.width_out, first.report.relative_cost) == (2, 1.0)
        assert (row.provenance.init_hash == verbs.named("acme/law").provenance.init_hash) == (method != "align")
        assert verbs.cook(recipe=by_hand("acme/law"), mixing={"method": method}).model == "acme/law@1"
    assert_rebuilt(verbs, first, recipe=by_hand("acme/code", "acme/law"), mixing=mixing)
    assert verbs.cook(
        recipe=by_hand("acme/code", "acme/law"), mixing=first.recipe.mixing.model_dump(mode="json")
    ).cached


def two_of_one_start(verbs: ToyRegistry, config: AdapterConfig = CONFIG) -> None:
    """Two adapters of one start that a seed draws; only the first names the seed."""
    started = init_hash(create(config, SHAPE, seed=5, init="zero_up").state_dict())
    provenance = Provenance(init_hash=started, init_source="declared", init_seed=5)
    verbs.push("acme/law", seed=1, config=config, provenance=provenance)
    verbs.push("acme/code", seed=2, config=config, provenance=provenance.model_copy(update={"init_seed": None}))


@pytest.mark.parametrize("config", [CONFIG, LORA])
def test_recompressed_soups_are_as_wide_as_one_adapter_and_tell_how_far_off_each_site_is(verbs, config):
    verbs.push_all("acme/law", "acme/zoo", config=config, provenance=UNKNOWN)
    cooked = verbs.cook(recipe=by_hand("acme/law", "acme/zoo"), mixing={"method": "recompress"}, name="acme/one")
    exact = verbs.cook(recipe=by_hand("acme/law", "acme/zoo"), mixing={"method": "concat"})
    report, row = cooked.report, verbs.row(cooked.soup_id)
    assert cooked.recipe.mixing == RecompressMixing()
    assert (report.width_out, report.relative_cost) == (report.width_in[0], 1.0)
    assert exact.report.residual < 1e-6 < report.residual < 1
    assert report.residuals
    assert all(0 <= residual < 1 for residual in report.residuals.values())
    assert exact.report.residuals is None
    assert (row.provenance.init_source, row.card.metadata) == ("unknown", {"mixing": "recompress"})


def test_one_adapter_recompressed_is_itself_or_a_narrower_soup(strangers):
    assert strangers.cook(recipe=by_hand("acme/law"), mixing={"method": "recompress"}).model == "acme/law@1"
    narrow = strangers.cook(recipe=by_hand("acme/law"), mixing={"method": "recompress", "width": 1})
    assert narrow.created
    assert strangers.row(narrow.soup_id).config.bottleneck == 1


# --- weights by layer -----------------------------------------------------------------------------


def recipe(*refs: str, **first: object) -> dict[str, object]:
    rows = [{"ref": ref, "weight": 0.4 + number, "layers": SITES} for number, ref in enumerate(refs)]
    return {"ingredients": [{**rows[0], **first}, *rows[1:]]}


def test_a_recipe_is_kept_as_it_was_given_and_gives_the_same_soup_again(strangers):
    first = strangers.cook(recipe=recipe("acme/law", "acme/code"))
    assert first.recipe.mixing == ConcatMixing()
    assert sorted(ingredient.weight for ingredient in first.recipe.ingredients) == ["0.4", "1.4"]
    assert {tuple(ingredient.layers.items()) for ingredient in first.recipe.ingredients} == {tuple(SITES.items())}
    second = strangers.cook(
        recipe={
            "ingredients": [
                {"ref": ingredient.digest, "weight": float(ingredient.weight), "layers": ingredient.layers}
                for ingredient in first.recipe.ingredients
            ]
        }
    )
    assert (second.digest, second.recipe_digest, second.cached) == (first.digest, first.recipe_digest, True)


def test_one_adapter_with_layers_is_stored_as_a_soup(strangers):
    assert strangers.cook(recipe=recipe("acme/law")).created


@pytest.mark.parametrize(
    ("first", "sentence"),
    [
        ({"layers": {"layers.0.ffn": 1}}, "of acme/law@1 lack layers.1.ffn; it needs a factor for each of its 2"),
        ({"layers": {**SITES, "layers.9.ffn": 1}}, "name layers.9.ffn, where it has nothing"),
        ({"weight": 1e12}, "weights must be a finite number of at most 1000"),
        ({"ref": "acme/code"}, "acme/code is in the recipe twice"),
    ],
)
def test_what_is_wrong_with_them_is_told(strangers, first, sentence):
    with pytest.raises(InvalidRecipe, match=re.escape(sentence)):
        strangers.cook(recipe=recipe("acme/law", "acme/code", **first))
