"""Cooking the adapter of a bank: what is stored, in whose place it stands, and that its bytes can be made again."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from registry.adapters.experts import merge_bank
from registry.adapters.weights import adapter_digest, load_tensors
from registry.errors import Retired
from registry.spec import BankConfig, Provenance
from tests.registry.toy_registry import (
    CONFIG,
    INIT,
    LORA,
    SHAPE,
    ToyRegistry,
    assert_rebuilt,
    by_hand,
    passages,
    vectors_of,
    weights,
)

ON_DATABASES = ("sqlite",)  # whatever they ask a catalogue, `test_cook` asks one of each kind

BANK = BankConfig(expert=CONFIG, experts=3)
LORA_BANK = BankConfig(expert=LORA, share="none", experts=2)


@pytest.fixture
def world(verbs: ToyRegistry) -> ToyRegistry:
    """A bank with a sample, embedded."""
    verbs.ready("acme/bank", seed=3, config=BANK, domain="law", text="law")
    return verbs


def merge(world: ToyRegistry, ref: str = "acme/bank", **request: Any) -> Any:
    return world.cook(recipe=by_hand(ref), **request)


@pytest.mark.parametrize("config", [BANK, LORA_BANK])
@pytest.mark.parametrize("mixing", [{}, {"mixing": {"method": "merge"}}])
def test_a_bank_alone_becomes_its_adapter(verbs, config, mixing):
    bank = verbs.push("acme/bank", seed=3, config=config).row
    cooked = merge(verbs, name="acme/law", **mixing)
    row = verbs.row(cooked.soup_id)
    assert (cooked.model, cooked.created, cooked.cached) == ("acme/law@1", True, False)
    expected = merge_bank(config, load_tensors(weights(3, config)))
    assert (row.digest, row.config, row.parameters) == (
        adapter_digest(SHAPE.fingerprint, config.expert, expected),
        config.expert,
        sum(tensor.numel() for tensor in expected.values()),
    )
    assert cooked.recipe.mixing.method == "merge"
    assert [ingredient.digest for ingredient in cooked.recipe.ingredients] == [bank.digest]
    with verbs.database.read() as catalogue:
        parents = catalogue.soups.parents(row.recipe_digest, None)
        children = catalogue.soups.children(bank.digest, None)
    assert [(digest, weight) for digest, weight, _ in parents] == [(bank.digest, "1")]
    assert [child.ref for child in children] == ["acme/law@1"]
    assert cooked.reason.startswith("One adapter by merge" + ("" if mixing else ": the mean of its "))
    second = merge(verbs, name="acme/law", **mixing)
    assert (second.cached, second.created, second.digest) == (True, False, cooked.digest)
    assert_rebuilt(verbs, cooked, recipe=by_hand("acme/bank"), name="acme/law", **mixing)
    assert row.card.description == f"Merge of acme/bank@1, a bank of {config.experts} experts."
    assert row.card.metadata == {"mixing": "merge"}


def test_it_takes_the_place_of_the_bank_with_its_domain_sample_and_initialisation(world):
    row = world.row(merge(world, name="acme/merged").soup_id)
    assert (row.kind, row.domain, row.sample_state) == ("adapter", "law", "ready")
    assert row.sample == world.named("acme/bank").sample
    assert row.provenance == Provenance(init_hash=INIT.init_hash, init_source="declared")
    world.push("acme/plain", seed=1)
    soup = world.cook(recipe=by_hand("acme/merged", "acme/plain"))
    assert soup.recipe.mixing.method == "average"
    assert "initialisation agree" in soup.reason
    world.ready("acme/other", seed=3, config=BANK, domain="law", text="code")  # the same bank with another sample
    assert world.row(merge(world, "acme/other", name="acme/merged").soup_id).sample == row.sample


def test_a_bank_without_origin_or_sample_gives_an_adapter_without(verbs):
    verbs.push("acme/bank", config=BANK, provenance=Provenance())
    row = verbs.row(merge(verbs).soup_id)
    assert (row.provenance, row.sample, row.sample_state) == (Provenance(), None, "none")


# --- in the place of the bank -----------------------------------------------------------------------


def test_it_is_found_for_its_domain_and_the_bank_never(world):
    """Also not where the bank is the newer of the two."""
    world.ready("acme/code", seed=1)
    merged = merge(world, name="acme/merged")
    world.ready("acme/bank", seed=4, config=BANK, domain="law", text="law")
    sample = {"texts": passages("law", 30, seed=9)}
    soup = world.cook(sample=sample, selector={"kind": "cosine"}, options={"single": True})
    assert soup.model == "acme/merged@1"
    assert soup.digest == merged.digest


def test_a_sample_that_is_not_embedded_yet_is_embedded_for_the_merge_too(verbs):
    bank = verbs.push("acme/bank", config=BANK, domain="law", sample={"texts": passages("law")}).row
    row = verbs.row(merge(verbs, name="acme/merged").soup_id)
    assert (bank.sample_state, row.sample_state) == ("pending", "pending")
    with verbs.database.read() as catalogue:
        jobs = catalogue.jobs.list(None, limit=10).rows
    assert {job.arguments["adapter_id"] for job in jobs if job.kind == "embed"} == {bank.id, row.id}
    assert verbs.embed(row).sample_state == "ready"


def test_vectors_that_came_without_text_are_the_merges_too(verbs):
    bank = verbs.push("acme/bank", config=BANK, domain="law", sample=vectors_of(verbs.base, passages("law"))).row
    row = verbs.row(merge(verbs).soup_id)
    assert bank.sample_state == row.sample_state == "ready"
    assert not row.sample.has_text


def test_the_text_and_name_of_a_bank_stay_in_its_namespace(world):
    row = world.row(merge(world, name="other/merged", namespace="other").soup_id)
    assert (row.sample, row.sample_state, row.domain) == (None, "none", "law")
    assert "acme" not in row.card.description
    assert world.named("acme/bank").digest[:19] in row.card.description


def test_a_sample_that_the_bank_gets_later_is_the_merges_too_once_it_is_merged_again(verbs):
    bank = verbs.push("acme/bank", config=BANK, domain="law").row
    first = merge(verbs, name="acme/merged")
    verbs.embed(verbs.push("acme/bank", config=BANK, domain="law", sample={"texts": passages("law")}).row)
    second = merge(verbs, name="acme/merged")
    row = verbs.row(second.soup_id)
    assert (second.soup_id, second.created) == (first.soup_id, False)
    assert (row.sample_state, row.sample) == ("ready", verbs.row(bank.id).sample)
    soup = verbs.cook(sample={"texts": passages("law", seed=9)}, selector={"kind": "cosine", "threshold": 0.15})
    assert soup.model == "acme/merged@1"


def test_many_at_once_are_one(world):
    with ThreadPoolExecutor(4) as pool:
        cooked = list(pool.map(lambda _: merge(world, name="acme/merged"), range(6)))
    assert {answer.model for answer in cooked} == {"acme/merged@1"}
    assert sum(answer.created for answer in cooked) == 1


def test_the_merge_of_a_bank_that_is_retired_stays(world):
    merged = merge(world, name="acme/merged")
    bank = world.named("acme/bank")
    world.retire(bank.id)
    with world.database.read() as catalogue:
        ((digest, _, parent),) = catalogue.soups.parents(world.row(merged.soup_id).recipe_digest, None)
    assert (digest, parent.retired_at is not None) == (bank.digest, True)
    soup = world.cook(sample={"texts": passages("law", seed=9)}, selector={"kind": "cosine", "threshold": 0.15})
    assert soup.digest == merged.digest
    with pytest.raises(Retired):
        merge(world)


def test_a_bank_twice_is_one(world):
    twice = world.cook(recipe={"ingredients": [{"ref": "acme/bank", "weight": 0.2}, {"ref": "acme/bank@1"}]})
    assert twice.digest == merge(world).digest
