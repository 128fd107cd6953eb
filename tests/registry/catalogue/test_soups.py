"""Recipes, lineage both ways, evidence, and the embeddings of samples."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from registry.catalogue.rows import EmbeddingRow, SelectorRow
from registry.catalogue.soups import MAX_EVIDENCE
from registry.errors import NotFound
from registry.names import digest_of, sha256_digest
from registry.spec import CosineSpec, GmmSpec, MixReport, PoolSpec, Recipe, RecipeIngredient, UniformSpec
from tests.registry.catalogue_rows import BASE, add, member_of, pool_of

REPORT = MixReport(
    method="average", members=2, weights=("0.25", "0.75"), parameters=10, size_bytes=40, relative_cost=1.0
)


def recipe_of(*digests: str, **fields) -> Recipe:
    ingredients = tuple(RecipeIngredient(digest=digest, weight="0.5") for digest in sorted(digests))
    return Recipe(base_fingerprint=BASE, ingredients=ingredients, **fields)


def cook(catalogue, name: str, recipe: Recipe, *, replaces: str | None = None):
    """A soup of this recipe, stored as the verb does it."""
    row = add(catalogue, name, kind="soup", recipe_digest=recipe.digest)
    catalogue.soups.add_recipe(recipe, row.digest, row.weights_blob, REPORT, replaces=replaces)
    return row


def test_what_a_recipe_gave_first_stays_unless_that_is_replaced_by_name(catalogue):
    recipe = recipe_of(add(catalogue, "acme/a").digest)
    first, second = cook(catalogue, "acme/s", recipe), cook(catalogue, "acme/t", recipe)
    assert catalogue.soups.recipe(recipe.digest).adapter_digest == first.digest != second.digest
    third = cook(catalogue, "acme/u", recipe, replaces=first.digest)
    cook(catalogue, "acme/v", recipe, replaces=first.digest)  # of a server that read it before
    assert catalogue.soups.recipe(recipe.digest).adapter_digest == third.digest


# --- lineage --------------------------------------------------------------------------------------


def test_what_a_key_does_not_see_has_a_digest_and_no_name(catalogue):
    mine, theirs = add(catalogue, "acme/a"), add(catalogue, "other/b")
    recipe = recipe_of(mine.digest, theirs.digest)
    soup = cook(catalogue, "acme/s", recipe)
    parents = {digest: row for digest, _, row in catalogue.soups.parents(recipe.digest, ("acme",))}
    assert parents == {mine.digest: mine, theirs.digest: None}
    assert catalogue.soups.children(theirs.digest, ("other",)) == []
    assert [child.id for child in catalogue.soups.children(theirs.digest, ("acme",))] == [soup.id]


def test_retired_parents_are_shown_retired_and_live_twins_are_preferred(catalogue):
    a, twin = add(catalogue, "acme/a", digest="d"), add(catalogue, "acme/twin", digest="d")
    recipe = recipe_of(a.digest)
    cook(catalogue, "acme/s", recipe)
    catalogue.adapters.retire(twin.id)
    assert catalogue.soups.parents(recipe.digest, None)[0][2] == a
    catalogue.adapters.retire(a.id)
    assert catalogue.soups.parents(recipe.digest, None)[0][2].retired_at is not None


def test_domains_of_ingredients_are_by_weight_and_none_for_those_that_are_not_seen(catalogue):
    light, heavy = add(catalogue, "acme/a", domain="light"), add(catalogue, "acme/b", domain="heavy")
    theirs = add(catalogue, "other/c", domain="theirs")
    weights = {light.digest: "0.1", heavy.digest: "0.6", theirs.digest: "0.3"}
    ingredients = tuple(RecipeIngredient(digest=digest, weight=weights[digest]) for digest in sorted(weights))
    recipe = Recipe(base_fingerprint=BASE, ingredients=ingredients)
    cook(catalogue, "acme/s", recipe)
    domains = catalogue.soups.ingredient_domains
    assert domains({recipe.digest}, ("acme",)) == {recipe.digest: ["heavy", None, "light"]}
    assert domains({recipe.digest}, None) == {recipe.digest: ["heavy", "theirs", "light"]}
    assert domains({sha256_digest(b"?")}, None) == {}


def test_retired_soups_are_no_children(catalogue):
    a = add(catalogue, "acme/a")
    rows = [cook(catalogue, f"acme/{name}", recipe_of(a.digest)) for name in "st"]
    catalogue.adapters.retire(rows[0].id)
    assert [child.id for child in catalogue.soups.children(a.digest, None)] == [rows[1].id]


def test_verifications_are_the_newest_of_each_soup(catalogue):
    recipe = recipe_of(add(catalogue, "acme/a").digest)
    soup, second, bare = (cook(catalogue, f"acme/{name}", recipe) for name in "stu")
    for row, number in [(second, 9), *((soup, number) for number in range(5))]:
        catalogue.soups.add_evidence(row.id, recipe.digest, {"verification": {"difference": number}, "more": "x"})
    catalogue.soups.add_evidence(soup.id, recipe.digest, {"verification": None})
    catalogue.soups.add_evidence(bare.id, recipe.digest, {"selector": "sel-x"})
    names = [(row.namespace, row.name, row.version) for row in (soup, second, bare)]
    verifications = catalogue.soups.verifications(names, most=3)
    assert verifications == {
        names[0]: [{"difference": 3}, {"difference": 4}],  # the newest evidence was not verified
        names[1]: [{"difference": 9}],
    }
    assert catalogue.soups.verifications(names[1:2], most=3) == {names[1]: [{"difference": 9}]}


def test_past_trials_are_the_newest_that_a_caller_sees(catalogue):
    recipe = recipe_of(add(catalogue, "acme/a").digest)
    soup, hidden = cook(catalogue, "acme/s", recipe), cook(catalogue, "other/t", recipe)

    def cooked(row, effort: str, difference: float) -> None:
        search = {"effort": effort, "trials": [{"way": "selected", "difference": 0.5}]}
        body = {"search": search, "verification": {"difference": difference}}
        catalogue.soups.add_evidence(row.id, recipe.digest, body)

    for number in range(3):
        cooked(soup, "quick", -number)
    cooked(hidden, "tune", -9.0)
    cooked(soup, "tune", -5.0)
    catalogue.soups.add_evidence(soup.id, recipe.digest, {"search": None, "verification": {"difference": -1.0}})
    past = catalogue.soups.past_trials(soup.base_model, ("acme",), most=4)  # the newest has no trials
    assert [(effort, difference) for effort, _, difference in past] == [("tune", -5), ("quick", -2), ("quick", -1)]
    assert past[0][1] == [{"way": "selected", "difference": 0.5}]
    assert len(catalogue.soups.past_trials(soup.base_model, None, most=4)) == 3
    assert catalogue.soups.past_trials("another", None, most=4) == []


def test_evidence_is_that_of_the_first_and_the_newest_cooks(catalogue):
    recipe = recipe_of(add(catalogue, "acme/a").digest)
    same = recipe_of(add(catalogue, "acme/b").digest)  # another recipe that gives the same soup
    soup, second = cook(catalogue, "acme/s", recipe), cook(catalogue, "acme/t", same)
    for row in (soup, second):
        catalogue.soups.add_evidence(row.id, same.digest, {"selector": "sel-same"})
    for number in range(MAX_EVIDENCE + 3):
        catalogue.soups.add_evidence(soup.id, recipe.digest, {"selector": f"sel-{number}"})
    evidence = catalogue.soups.evidence(soup.id)
    assert all(record["created_at"].endswith("+00:00") for record in evidence)
    selectors = [record["selector"] for record in evidence]
    assert selectors == ["sel-0", *(f"sel-{number}" for number in range(4, MAX_EVIDENCE + 3))]
    assert [record["selector"] for record in catalogue.soups.evidence(soup.id, most=1)] == selectors[-1:]
    assert [record["selector"] for record in catalogue.soups.evidence(second.id)] == ["sel-same"]
    catalogue.adapters.retire(second.id)
    for row in (second, soup):  # each recipe has evidence of the soup until its purge, which finds recipes by it
        catalogue.removals.purge(catalogue.adapters.get(row.id))
    assert catalogue.soups.recipe(same.digest) is None


def test_one_embedding_for_each_sample_and_encoder(catalogue):
    row = EmbeddingRow(
        sample_digest=sha256_digest(b"sample"),
        encoder_digest=sha256_digest(b"e1"),
        encoder_name="sbert",
        unit="sentence",
        blob_digest=sha256_digest(b"vectors"),
        count=200,
        dimensions=384,
        truncated=3,
    )
    second = replace(row, encoder_digest=sha256_digest(b"e2"), encoder_name="base", unit="passage")
    catalogue.blobs.record(row.blob_digest, 9)
    for embedding in (row, second, replace(row, count=1)):
        catalogue.samples.add_embedding(embedding)
    assert catalogue.samples.embedding(row.sample_digest, row.encoder_digest) == row
    assert catalogue.samples.embedding(row.sample_digest, sha256_digest(b"e3")) is None
    assert {embedding.encoder_name for embedding in catalogue.samples.embeddings(row.sample_digest)} == {
        "sbert",
        "base",
    }
    assert catalogue.samples.embeddings(sha256_digest(b"?")) == []


# --- selectors ------------------------------------------------------------------------------------


def fitted(catalogue, id: str, *, pool: PoolSpec | None = None, spec=None, **fields) -> SelectorRow:
    """A selector with this id; its state has been stored."""
    pool, spec = pool or pool_of("acme"), spec or GmmSpec()
    state_blob = sha256_digest(id.encode())
    catalogue.blobs.record(state_blob, 1)
    values = {
        "pool_id": digest_of(pool),
        "pool": pool,
        "spec": spec,
        "spec_digest": digest_of(spec),
        "encoder_digest": sha256_digest(b"encoder"),
        "state_blob": state_blob,
        "members": (),
        "report": {"held_out_accuracy": 0.5},
    }
    return catalogue.selectors.add(SelectorRow(id=id, fitted_at=datetime.now(UTC), **{**values, **fields}))


def latest(catalogue, pool=None, spec=None) -> str | None:
    target = digest_of(pool or pool_of("acme")), digest_of(spec or GmmSpec())
    row = catalogue.selectors.latest(*target)
    assert catalogue.selectors.latest_id(*target) == (row and row.id)
    return row and row.id


@pytest.mark.parametrize("spec", [GmmSpec(mode="paper", seed=3), CosineSpec(threshold=0.2), UniformSpec()])
@pytest.mark.parametrize("pool", [pool_of(), pool_of("acme", "b", method="m", tag="t", include_soups=True)])
def test_what_is_added_comes_back(catalogue, pool, spec):
    members = tuple(member_of(add(catalogue, f"acme/{name}")) for name in "ab")
    row = fitted(catalogue, "sel-1", pool=pool, spec=spec, members=members, encoder_digest=None)
    assert (row.pool, row.spec, row.members, row.encoder_digest) == (pool, spec, members, None)
    assert row.report == {"held_out_accuracy": 0.5}
    assert catalogue.selectors.get(None, "sel-1") == row


def test_each_pool_and_spec_is_served_by_what_was_fitted_last(catalogue):
    assert latest(catalogue) is None
    fitted(catalogue, "sel-1")
    fitted(catalogue, "sel-2", spec=GmmSpec(seed=1))
    fitted(catalogue, "sel-3", pool=pool_of("acme", "other"))
    assert (latest(catalogue), latest(catalogue, spec=GmmSpec(seed=1))) == ("sel-1", "sel-2")
    assert latest(catalogue, pool=pool_of("acme", "other")) == "sel-3"
    fitted(catalogue, "sel-4")
    assert latest(catalogue) == "sel-4"


def test_a_pool_that_returns_to_old_members_is_served_by_their_selector_again(catalogue):
    """Otherwise a selector with a member that is gone would serve for ever, and each refit change nothing."""
    first = fitted(catalogue, "sel-before")
    fitted(catalogue, "sel-with-one-more")
    assert fitted(catalogue, "sel-before") == first
    assert latest(catalogue) == "sel-before"


def test_what_serves_remembers_when_it_was_asked_for(catalogue):
    """A fit by itself is no asking; that of a pool never fitted is."""
    began = datetime.now(UTC)
    first = fitted(catalogue, "sel-1")
    assert catalogue.selectors.asked_at(["sel-1", "sel-?"])["sel-1"] >= began
    requested_at = began - timedelta(days=3)
    catalogue.selectors.record_request(first.pool_id, first.spec_digest, requested_at)
    fitted(catalogue, "sel-2", report={})
    assert catalogue.selectors.asked_at(["sel-1", "sel-2"]) == {"sel-2": requested_at}
    for since, count in ((requested_at, 1), (requested_at + timedelta(microseconds=1), 0), (None, 1)):
        assert len(catalogue.selectors.targets(BASE, requested_since=since)) == count
    assert catalogue.selectors.asked_at([]) == {}


@pytest.mark.parametrize(
    ("pool", "scope", "visible"),
    [
        (("acme",), None, True),
        (("acme",), ("acme",), True),
        (("acme",), ("acme", "other"), True),
        (("acme", "other"), ("acme",), False),
        (("acme", "other"), ("other", "acme", "more"), True),
        (("acme",), ("other",), False),
        (("acme",), (), False),
        ((), ("acme",), True),
        ((), (), True),
        (None, None, True),
        (None, ("acme",), False),
        (None, (), False),
        (None, ("*",), True),  # no key can have this namespace
    ],
)
def test_a_selector_is_visible_with_its_whole_pool(catalogue, pool, scope, visible):
    row = fitted(catalogue, "sel-1", pool=pool_of().model_copy(update={"namespaces": pool}))
    assert bool(catalogue.selectors.list(scope, limit=9).rows) is visible
    if visible:
        assert catalogue.selectors.get(scope, "sel-1") == row
    else:
        with pytest.raises(NotFound):
            catalogue.selectors.get(scope, "sel-1")


def test_unknown(catalogue):
    with pytest.raises(NotFound, match="no selector"):
        catalogue.selectors.get(None, "sel-?" + "x" * 5000)


def test_the_targets_of_a_base_are_each_pool_and_spec_once(catalogue):
    foreign_pool = PoolSpec(base_fingerprint=sha256_digest(b"other base"))
    for id, pool, spec in (
        ("sel-1", pool_of("acme"), GmmSpec()),
        ("sel-2", pool_of("acme"), UniformSpec()),
        ("sel-3", pool_of(), GmmSpec()),
        ("sel-4", pool_of("acme"), GmmSpec()),
        ("sel-5", foreign_pool, GmmSpec()),
    ):
        fitted(catalogue, id, pool=pool, spec=spec)
    assert catalogue.selectors.targets(BASE) == [
        (pool_of("acme"), UniformSpec()),
        (pool_of(), GmmSpec()),
        (pool_of("acme"), GmmSpec()),
    ]
    assert catalogue.selectors.targets(foreign_pool.base_fingerprint) == [(foreign_pool, GmmSpec())]
    assert catalogue.selectors.targets(foreign_pool.base_fingerprint, requested_since=datetime.now(UTC)) == []
    assert catalogue.selectors.targets(sha256_digest(b"?")) == []


def test_those_that_serve_are_listed_by_kind_without_their_members(catalogue):
    second_pool = pool_of("other")
    for id, pool, spec in (
        ("sel-1", pool_of("acme"), GmmSpec()),
        ("sel-2", pool_of("acme"), GmmSpec()),  # takes its place
        ("sel-3", second_pool, GmmSpec()),
        ("sel-4", pool_of("acme"), UniformSpec()),
    ):
        fitted(catalogue, id, pool=pool, spec=spec, report={"domains": 7})
    fitted(catalogue, "sel-1", report={"domains": 7})  # serves again
    assert [
        (selector.id, selector.pool, selector.domains) for selector in catalogue.selectors.serving(None, "gmm")
    ] == [
        ("sel-3", second_pool, 7),
        ("sel-1", pool_of("acme"), 7),
    ]
    assert [selector.id for selector in catalogue.selectors.serving(("acme",), "gmm")] == ["sel-1"]
    assert [selector.id for selector in catalogue.selectors.serving(("acme",), "uniform")] == ["sel-4"]
    assert catalogue.selectors.serving((), "gmm") == []
