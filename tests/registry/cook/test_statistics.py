"""Soups that are mixed by statistics: what is computed once, named, rebuilt from, and gone with its text."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest
import torch

from registry.adapters.weights import load_tensors
from registry.context import Retention
from registry.cook import statistics
from registry.cook.statistics import statistic_kind
from registry.errors import Cancelled, DamagedBlob, Incompatible, InvalidRecipe, QuotaExceeded, Retired
from registry.lifecycle.collect import collect
from registry.lifecycle.purge import purge
from registry.spec import (
    MOST_PASSAGES,
    AutoMixing,
    BaseEntry,
    Cooked,
    FisherMixing,
    MeasuredStatistic,
    Mixing,
    RecompressMixing,
    StatisticRequest,
    UseLimits,
)
from registry.spec.limits import LimitKind
from registry.stored.files import record_bytes
from tests.registry.toy_registry import LORA, SHAPE, ToyRegistry, assert_rebuilt, by_hand, passages, purging

ON_DATABASES = ("sqlite",)  # whatever they ask a catalogue, `test_cook` asks one of each kind

RECIPE = {"ingredients": [{"ref": "acme/law", "weight": 1}, {"ref": "acme/tax", "weight": 3}]}
FISHER = {"method": "fisher"}
METHODS: dict[str, dict[str, Any]] = {
    "fisher": FISHER,
    "regmean": {"method": "regmean", "off_diagonal": 0.5},
    "by inputs": {"method": "recompress", "by_inputs": True},
}


@pytest.fixture
def two(verbs: ToyRegistry) -> ToyRegistry:
    """Two adapters of one start, each with the text of a sample."""
    return with_two(verbs)


def with_two(verbs: ToyRegistry, **fields: Any) -> ToyRegistry:
    for seed, name in enumerate(("law", "tax")):
        verbs.push(f"acme/{name}", seed=seed, sample={"texts": passages(name)}, **fields)
    return verbs


def statistics_of(verbs: ToyRegistry, name: str, kind: str = "fisher") -> str:
    row = verbs.named(name)
    with verbs.database.read() as catalogue:
        statistic = catalogue.statistics.find(row.digest, row.sample.digest, kind)  # type: ignore[arg-type]
    return statistic.blob_digest


@pytest.mark.parametrize("mixing", METHODS.values(), ids=METHODS)
def test_it_is_computed_once_and_the_soup_is_rebuilt_to_the_bit(verbs: ToyRegistry, mixing: dict[str, Any]) -> None:
    with_two(verbs, **({"config": LORA} if "by_inputs" in mixing else {}))
    first = verbs.cook(recipe=RECIPE, mixing=mixing)
    rows = [verbs.named(ref) for ref in ("acme/law", "acme/tax")]
    assert [request.adapter.blob for request in verbs.measurings] == [row.weights_blob for row in rows]
    assert verbs.measurings[0].texts == tuple(passages("law"))
    kind = verbs.measurings[0].kind
    assert {ingredient.digest: ingredient.statistic for ingredient in first.recipe.ingredients} == {
        row.digest: statistics_of(verbs, f"acme/{row.name}", kind) for row in rows
    }
    assert_rebuilt(verbs, first, recipe=RECIPE, mixing=mixing)
    assert verbs.cook(recipe=RECIPE, mixing=mixing).cached
    assert verbs.cook(recipe=by_hand("acme/law"), mixing=mixing).model == "acme/law@1"
    plain = verbs.cook(recipe=RECIPE, mixing={"method": "recompress" if "by_inputs" in mixing else "average"})
    assert plain.digest != first.digest
    assert "statistic" not in plain.recipe.model_dump_json()
    assert len(verbs.measurings) == 2


def test_the_formula_reads_what_was_stored(two: ToyRegistry) -> None:
    soup = load_tensors(two.blobs.read(two.row(two.cook(recipe=RECIPE, mixing=FISHER).soup_id).weights_blob))
    (law, law_fisher), (tax, tax_fisher) = (
        [load_tensors(two.blobs.read(blob)) for blob in (two.named(name).weights_blob, statistics_of(two, name))]
        for name in ("acme/law", "acme/tax")
    )
    for name, tensor in soup.items():
        shares = 0.25 * law_fisher[name], 0.75 * tax_fisher[name]
        expected = (shares[0] * law[name] + shares[1] * tax[name]) / (shares[0] + shares[1])
        assert torch.allclose(tensor, expected, rtol=1e-5, atol=1e-6), name


def test_a_statistic_serves_every_soup_and_every_version_with_that_text(two: ToyRegistry) -> None:
    two.cook(recipe=RECIPE, mixing={"method": "regmean"})
    two.cook(recipe=RECIPE, mixing={"method": "regmean", "off_diagonal": 0.1})
    for ref, text, computed in (("beta/copy", "law", 2), ("beta/other", "other", 3)):  # a statistic is of one text
        two.push(ref, seed=0, sample={"texts": passages(text)})
        two.cook(recipe={"ingredients": [{"ref": ref}, {"ref": "acme/tax"}]}, mixing={"method": "regmean"})
        assert len(two.measurings) == computed


def test_a_long_sample_is_looked_at_all_over(verbs: ToyRegistry) -> None:
    all_texts = passages("law", 150)
    verbs.push("acme/law", seed=0, sample={"texts": all_texts})
    verbs.push("acme/tax", seed=1, sample={"texts": passages("tax")})
    verbs.cook(recipe=RECIPE, mixing=FISHER)
    texts = verbs.measurings[0].texts
    assert len(texts) == len(set(texts)) == MOST_PASSAGES
    assert np.diff([all_texts.index(text) for text in texts]).max() <= 3


def as_stored(cooked: Cooked) -> dict[str, Any]:
    """A stored recipe as it is sent to have its soup made again."""
    return {
        "ingredients": [
            {"ref": ingredient.digest, "weight": float(ingredient.weight), "statistic": ingredient.statistic}
            for ingredient in cooked.recipe.ingredients
        ]
    }


def test_a_stored_recipe_gives_its_soup_whatever_was_pushed_since(two: ToyRegistry) -> None:
    """A digest means the newest version, which may have another sample; the recipe names what it was mixed by."""
    first = two.cook(recipe=RECIPE, mixing=FISHER)
    two.push("beta/copy", seed=0, sample={"texts": passages("other")})
    two.blobs.delete(two.row(first.soup_id).weights_blob)
    rebuilt = two.cook(recipe=as_stored(first), mixing=FISHER)
    assert (rebuilt.cached, rebuilt.recipe_digest, rebuilt.digest) == (False, first.recipe_digest, first.digest)
    assert len(two.measurings) == 2
    nameless = {"ingredients": [{**ingredient, "statistic": None} for ingredient in as_stored(first)["ingredients"]]}
    assert two.cook(recipe=nameless, mixing=FISHER).recipe_digest != first.recipe_digest


def test_a_statistic_that_is_named_is_the_adapters_and_what_its_method_goes_by(two: ToyRegistry) -> None:
    named = as_stored(two.cook(recipe=RECIPE, mixing=FISHER))
    two.cook(recipe=RECIPE, mixing={"method": "regmean"})
    law, tax = named["ingredients"]
    crossed = [{**law, "statistic": tax["statistic"]}, tax]
    weights = [{**law, "statistic": two.named("acme/law").weights_blob}, tax]
    twice = [law, tax, {**tax, "statistic": None}]
    unused = r"names a statistic of acme/.*does not use statistics: leave it out"
    for ingredients, mixing, message in (
        (crossed, FISHER, r"is not a statistic of sha256:.* on a visible sample"),
        (weights, FISHER, "is not a statistic of"),
        ([law, tax], {"method": "regmean"}, r"of kind 'fisher' of acme/.*, but this mixing method needs 'inp"),
        (twice, FISHER, "twice, with different statistics"),
        ([law, tax], {"method": "average"}, unused),
        ([law, tax], {"method": "auto"}, unused),
    ):
        with pytest.raises(InvalidRecipe, match=message):
            two.cook(recipe={"ingredients": ingredients}, mixing=mixing)


def test_a_statistic_of_a_text_that_a_key_does_not_see_is_not_taken(two: ToyRegistry) -> None:
    two.push("beta/copy", seed=0, sample={"texts": passages("other")})
    theirs = as_stored(two.cook(recipe={"ingredients": [{"ref": "beta/copy"}, {"ref": "acme/tax"}]}, mixing=FISHER))
    assert two.cook(recipe=theirs, mixing=FISHER).cached
    with pytest.raises(InvalidRecipe, match="on a visible sample"):
        two.cook(scope=("acme",), recipe=theirs, mixing=FISHER)


# --- what cannot be ---------------------------------------------------------------------------------


def test_adapters_without_text_are_refused_before_anything_is_computed(two: ToyRegistry) -> None:
    two.push("acme/mute", seed=2)
    for ref in ("acme/mute", two.cook(recipe=RECIPE, name="acme/soup").model):
        with pytest.raises(Incompatible, match=r"has no sample whose text is kept.*push with 'texts'"):
            two.cook(recipe=by_hand("acme/law", ref), mixing=FISHER)
    assert two.measurings == []


def test_what_is_too_large_is_refused_before_anything_is_computed(
    two: ToyRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(statistics, "MOST_SOLVED_INPUTS", 7)
    with pytest.raises(Incompatible, match="with 8 inputs; RegMean supports at most 7"):
        two.cook(recipe=RECIPE, mixing={"method": "regmean"})
    two.cook(recipe=RECIPE, mixing=FISHER)  # as large as the adapter
    monkeypatch.setattr(statistics, "MOST_BYTES", 100)
    two.push("acme/a", config=LORA, sample={"texts": passages("a")})
    with pytest.raises(Incompatible, match="have 288 bytes; the maximum is 100"):
        two.cook(recipe={"ingredients": [{"ref": "acme/a"}]}, mixing={**METHODS["by inputs"], "width": 1})
    assert len(two.measurings) == 2


@pytest.mark.parametrize("kind", ["key", "namespace"])
def test_it_counts_for_whoever_has_the_adapter(two: ToyRegistry, kind: LimitKind) -> None:
    """Refused before a pass where its numbers have no room, after it where only the head of its file has none."""
    of = {"key": "key-1", "namespace": "acme"}[kind]

    def stored_bytes() -> int:
        with two.database.read() as catalogue:
            return catalogue.limits.stored_bytes(kind, of)

    def cook_with(room: int) -> None:
        with two.database.write() as catalogue:
            catalogue.limits.set(kind, of, UseLimits(stored_bytes=stored_bytes() + room))
        two.cook(recipe=RECIPE, mixing=FISHER, name="acme/soup")

    bytes_before, files = stored_bytes(), set(two.blobs.digests())
    numbers = sum(
        4 * tensor.numel() for tensor in load_tensors(two.blobs.read(two.named("acme/law").weights_blob)).values()
    )
    with pytest.raises(QuotaExceeded, match="this is more than is left"):
        cook_with(numbers - 1)
    assert two.measurings == []
    with pytest.raises(QuotaExceeded, match="would hold"):
        cook_with(numbers)
    assert len(two.measurings) == 1
    assert (stored_bytes(), set(two.blobs.digests())) == (bytes_before, files)
    cook_with(10**6)
    size = sum(two.blobs.size(statistics_of(two, name)) for name in ("acme/law", "acme/tax"))
    assert stored_bytes() == bytes_before + size + two.blobs.size(two.named("acme/soup").weights_blob)
    two.blobs.damage(statistics_of(two, "acme/law"), b"other")
    cook_with(0)  # what is damaged has its room
    assert len(two.measurings) == 4


def test_on_encoders_it_is_refused(two: ToyRegistry) -> None:
    two.tiny.shape = SHAPE.model_copy(update={"kind": "encoder"})
    with pytest.raises(
        Incompatible, match="looks at what adapters predict or read in text, and base model 'tiny' is an"
    ):
        two.cook(recipe=RECIPE, mixing=FISHER)


def test_a_cook_that_is_cancelled_leaves_what_it_has_computed(two: ToyRegistry) -> None:
    real = two.computations

    def once(entry: BaseEntry, request: StatisticRequest) -> MeasuredStatistic:
        if two.measurings:
            raise Cancelled("Enough.")
        return two.measure(entry, request)

    two.computations = replace(real, measure=once)
    with pytest.raises(Cancelled):
        two.cook(recipe=RECIPE, mixing=FISHER)
    assert two.blobs.is_whole(statistics_of(two, "acme/law"))
    assert "computing the statistics of acme/tax@1" in two.progress_messages
    two.computations = real
    two.cook(recipe=RECIPE, mixing=FISHER)
    assert len(two.measurings) == 2


@pytest.mark.parametrize("same", [True, False])
def test_of_two_cooks_that_compute_one_the_first_is_named_by_both(two: ToyRegistry, same: bool) -> None:
    cooks: list[Cooked] = []
    computed: list[str] = []
    real = two.computations

    def slower(entry: BaseEntry, request: StatisticRequest) -> MeasuredStatistic:
        """Another cook begins and ends while this computes, on a machine that rounds as it does or otherwise."""
        two.computations = real
        cooks.append(two.cook(recipe=RECIPE, mixing=FISHER))
        texts = request.texts if same else ("rounded otherwise", *request.texts)
        result = two.measure(entry, request.model_copy(update={"texts": texts}))
        computed.append(result.blob)
        return result

    two.computations = replace(real, measure=slower)
    second = two.cook(recipe=RECIPE, mixing=FISHER)
    assert (second.cached, second.recipe_digest) == (True, cooks[0].recipe_digest)
    assert len(two.measurings) == 3
    named = statistics_of(two, "acme/law")
    assert two.blobs.is_whole(named)
    assert [(blob == named, two.blobs.has(blob)) for blob in computed] == [(same, same)]


def purged_after(verbs: ToyRegistry, entry: BaseEntry, request: StatisticRequest) -> MeasuredStatistic:
    """Its adapter is purged when it is computed, and not recorded yet."""
    statistic = verbs.measure(entry, request)
    purge(verbs.registry, verbs.caller(), verbs.named("acme/law").id)
    return statistic


def test_what_is_named_while_it_is_forgotten_stays(two: ToyRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever names the same bytes comes before the look, or after the file went and stores it again."""
    two.computations = replace(two.computations, measure=lambda *arguments: purged_after(two, *arguments))
    named: list[Future[str]] = []
    digests_before, delete = set(two.blobs.digests()), two.blobs.delete

    def name(blob: str, data: bytes) -> str:
        with two.database.write() as catalogue:
            record_bytes(two.registry, catalogue, blob, data)
        return blob

    def meanwhile(blob: str) -> None:
        if blob not in digests_before:
            named.append(pool.submit(name, blob, two.blobs.read(blob)))
            wait(named, timeout=0.2)  # longer only changes how surely a mistake is seen
        delete(blob)

    monkeypatch.setattr(two.blobs, "delete", meanwhile)
    with ThreadPoolExecutor(1) as pool, pytest.raises(Retired, match="acme/law@1 was purged"):
        two.cook(recipe=RECIPE, mixing=FISHER)
    (blob,) = [future.result() for future in named]
    assert two.blobs.is_whole(blob)


@pytest.mark.parametrize(
    ("mixing", "may"),
    [
        (FisherMixing(), True),
        (RecompressMixing(by_inputs=True), True),
        (RecompressMixing(), False),
        (AutoMixing(), False),
    ],
)
def test_only_methods_that_need_it_may_take_a_minute(mixing: Mixing, may: bool) -> None:
    assert (statistic_kind(mixing) is not None) == may


# --- what becomes of it -----------------------------------------------------------------------------


def test_it_goes_with_its_text_and_soups_of_it_are_named(two: ToyRegistry) -> None:
    """Also where somebody else still has the weights, with other text."""
    two.push("beta/copy", seed=0, sample={"texts": passages("other")})
    soup = two.row(two.cook(recipe=RECIPE, mixing=FISHER, name="acme/soup").soup_id)
    plain = two.cook(recipe=RECIPE, name="acme/plain")
    blob = statistics_of(two, "acme/law")
    registry = replace(two.registry, retention=Retention(grace=timedelta(days=1)))
    collect(registry, datetime.now(UTC) + timedelta(days=30), used=lambda _: set())
    assert two.blobs.is_whole(blob)  # collections leave it alone
    with two.database.read() as catalogue:
        assert catalogue.blobs.references(blob) == ["statistic of acme/law@1"]
        assert not catalogue.blobs.is_visible(("acme",), blob)
        assert catalogue.soups.lost_statistics(soup.recipe_digest) == set()
    done = purge(two.registry, two.caller(), two.named("acme/law").id)
    assert [row.ref for row in done.not_rebuildable] == [soup.ref]
    assert not two.blobs.has(blob)
    with two.database.read() as catalogue:
        assert catalogue.soups.lost_statistics(soup.recipe_digest) == {blob}
        assert catalogue.soups.missing_ingredients(soup.recipe_digest) == set()
        assert catalogue.soups.lost_statistics(plain.recipe_digest) == set()
        assert catalogue.statistics.missing_blobs([blob]) == {blob}
    assert two.blobs.is_whole(soup.weights_blob)


def test_it_stays_while_anyone_has_these_weights_with_that_text(two: ToyRegistry) -> None:
    two.push("beta/copy", seed=0, sample={"texts": passages("law")})
    two.cook(recipe=RECIPE, mixing=FISHER, name="acme/soup")
    blob = statistics_of(two, "acme/law")
    assert purge(two.registry, two.caller(), two.named("acme/law").id).not_rebuildable == ()
    assert two.blobs.is_whole(blob)
    with two.database.read() as catalogue:
        assert catalogue.blobs.references(blob) == ["statistic of beta/copy@1"]


@pytest.mark.parametrize("same", [True, False])
def test_what_is_damaged_is_computed_anew(two: ToyRegistry, same: bool) -> None:
    """To the same bytes the recipe is the one there was; on another machine it may be another."""
    first = two.cook(recipe=RECIPE, mixing=FISHER)
    blob = statistics_of(two, "acme/law")
    two.blobs.damage(blob, b"other")

    def elsewhere(entry: BaseEntry, request: StatisticRequest) -> MeasuredStatistic:
        return two.measure(entry, request.model_copy(update={"texts": ("rounded otherwise", *request.texts)}))

    if not same:
        two.computations = replace(two.computations, measure=elsewhere)
    assert (two.cook(recipe=RECIPE, mixing=FISHER).recipe_digest == first.recipe_digest) == same
    assert two.blobs.is_whole(statistics_of(two, "acme/law"))
    assert len(two.measurings) == 3
    with two.database.read() as catalogue:
        assert catalogue.soups.lost_statistics(first.recipe_digest) == (set() if same else {blob})


def test_a_copy_that_is_put_back_before_the_next_cook_repairs_it(two: ToyRegistry) -> None:
    """A recipe that names what is damaged waits for it: nothing else is computed in its place."""
    first = two.cook(recipe=RECIPE, mixing=FISHER)
    blob = statistics_of(two, "acme/law")
    copy = two.blobs.read(blob)
    two.blobs.damage(blob, b"other")
    two.blobs.delete(two.row(first.soup_id).weights_blob)
    with pytest.raises(DamagedBlob):
        two.cook(recipe=as_stored(first), mixing=FISHER)
    assert len(two.measurings) == 2
    two.blobs.damage(blob, copy)
    rebuilt = two.cook(recipe=as_stored(first), mixing=FISHER)
    assert (rebuilt.cached, rebuilt.digest, len(two.measurings)) == (False, first.digest, 2)


@pytest.mark.parametrize("computed", [False, True])
def test_a_purge_while_it_is_computed_leaves_no_statistic(
    two: ToyRegistry, monkeypatch: pytest.MonkeyPatch, computed: bool
) -> None:
    digests_before = set(two.blobs.digests())
    if computed:
        two.computations = replace(two.computations, measure=lambda *arguments: purged_after(two, *arguments))
    else:
        purging(two, monkeypatch, two, "measure")
        two.computations = replace(two.computations, measure=lambda *arguments: two.measure(*arguments))
    with pytest.raises(Retired, match="acme/law@1 was purged"):
        two.cook(recipe=RECIPE, mixing=FISHER)
    assert set(two.blobs.digests()) < digests_before
