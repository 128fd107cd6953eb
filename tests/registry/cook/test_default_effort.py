"""What a namespace's setting does to a cook: effort `tune` forbidden, allowed, or taken where it is left open."""

from __future__ import annotations

from dataclasses import replace

import pytest

from registry.errors import Forbidden, InvalidParameter, InvalidSample
from tests.registry.toy_registry import SHAPE, ToyRegistry, by_hand, sample, vectors_of

ON_DATABASES = ("sqlite",)  # whatever they ask a catalogue, `test_cook` asks one of each kind

SAMPLE = sample("law", "zoo")
BY_HAND = by_hand("acme/law", "acme/zoo")
TUNED_BY_DEFAULT = "Effort 'tune' is the default of namespace 'acme'."


@pytest.fixture
def pool(verbs) -> ToyRegistry:
    for seed, name in enumerate(("law", "zoo")):
        verbs.ready(f"acme/{name}", seed=seed)
    return verbs


def set_tuning(pool: ToyRegistry, tuning: str, namespace: str = "acme") -> None:
    with pool.database.write() as catalogue:
        catalogue.namespaces.set(namespace, {"tuning": tuning})


def soups(pool: ToyRegistry) -> int:
    with pool.database.read() as catalogue:
        return len(catalogue.adapters.list(None, kind="soup", limit=9).rows)


def tune(pool: ToyRegistry, **request):
    return pool.cook(sample=SAMPLE, effort="tune", verify=True, **request)


def left_open(pool: ToyRegistry, **request):
    return pool.cook(**{"sample": SAMPLE, "verify": True, **request})


class TestForbid:
    @pytest.mark.parametrize("request_", [{}, {"recipe": BY_HAND}, {"name": "acme/leases", "keep": "leases"}])
    def test_nothing_is_trained_and_the_sentence_says_what_to_do(self, pool, request_):
        set_tuning(pool, "forbid")
        with pytest.raises(Forbidden, match=r"Namespace 'acme' forbids .* effort 'quick' or 'instant'.* 'allow'\.$"):
            tune(pool, **request_)
        assert (pool.tunings, soups(pool)) == ([], 0)

    def test_it_is_the_namespace_that_is_written_to(self, pool):
        set_tuning(pool, "forbid")
        assert tune(pool, name="other/leases").model == "other/leases@1"
        set_tuning(pool, "forbid", "third")
        with pytest.raises(Forbidden, match="'third'"):
            tune(pool, namespace="other", name="third/leases")

    def test_what_was_tuned_before_is_not_handed_out_again_and_mixtures_are_cooked_as_ever(self, pool):
        tune(pool)
        set_tuning(pool, "forbid")
        with pytest.raises(Forbidden):
            tune(pool)
        with pytest.raises(Forbidden):  # also where a job settled on it before
            left_open(pool, settled="tune")
        assert not pool.cook(sample=SAMPLE, effort="instant").abstained
        assert not pool.cook(recipe=BY_HAND).abstained

    def test_what_was_forbidden_while_it_trained_is_not_stored(self, pool, monkeypatch):
        before, trained = soups(pool), pool.computations.tune

        def meanwhile(*asked):
            set_tuning(pool, "forbid")
            return trained(*asked)

        monkeypatch.setattr(pool, "computations", replace(pool.computations, tune=meanwhile))
        with pytest.raises(Forbidden):
            tune(pool)
        assert (len(pool.tunings), soups(pool)) == (1, before)


class TestDefault:
    def test_a_request_that_leaves_it_open_is_tuned_and_the_answer_says_so(self, pool):
        set_tuning(pool, "default")
        cooked = left_open(pool)
        assert cooked.evidence.search.effort == "tune"
        assert cooked.recipe.tuning is not None
        assert cooked.reason.endswith(TUNED_BY_DEFAULT)
        explicit = tune(pool)
        assert (explicit.digest, explicit.cached) == (cooked.digest, True)
        assert "default" not in explicit.reason
        pool.learns, pool.starts = -0.1, 3.2
        abstained = left_open(pool, sample=sample("zoo"))
        assert abstained.abstained
        assert abstained.reason.endswith(TUNED_BY_DEFAULT)

    @pytest.mark.parametrize(
        "request_",
        [
            {"effort": "instant"},
            {"selector": {"kind": "uniform"}},
            {"sample": None, "recipe": BY_HAND},
            {"recipe": BY_HAND},
            {"verify": False},
            {"name": "other/leases"},
        ],
        ids=["an effort", "a selector", "a recipe alone", "a recipe", "not verified", "another namespace"],
    )
    def test_every_other_request_is_cooked_as_it_says(self, pool, request_):
        pool.tiny.anything_helps = 0.1
        set_tuning(pool, "default")
        cooked = left_open(pool, **request_)
        assert pool.tunings == []
        assert cooked.recipe is None or cooked.recipe.tuning is None
        assert "default" not in cooked.reason

    def test_vectors_without_text_are_not_tuned_on(self, pool):
        set_tuning(pool, "default")
        vectors = vectors_of(pool.base, SAMPLE["texts"])
        assert left_open(pool, sample=vectors, verify=False).evidence.search is None
        with pytest.raises(InvalidSample, match="Verifying a soup needs the sample's text"):
            left_open(pool, sample=vectors)


class TestTheServersDefault:
    """Of a request that names no effort, selector or recipe."""

    @pytest.mark.parametrize("effort", [None, "quick", "thorough"])
    def test_what_is_left_open_is_weighed(self, pool, effort):
        if effort is not None:
            pool.registry = replace(pool.registry, default_effort=effort)
        pool.tiny.anything_helps = 0.1
        cooked = left_open(pool)
        assert cooked.evidence.search.effort == (effort or "quick")
        assert "default" not in cooked.reason
        assert cooked.digest == left_open(pool, effort=effort or "quick").digest

    @pytest.mark.parametrize(
        ("request_", "tuning_is_beyond"),
        [
            ({"effort": "instant"}, True),
            ({"verify": False}, False),
            ({"mixing": {"method": "concat"}}, True),
            ({"options": {"single": True}}, True),
        ],
    )
    def test_what_weighing_would_refuse_is_instant(self, pool, request_, tuning_is_beyond):
        cooked = left_open(pool, **request_)
        assert (pool.weighings, cooked.evidence.search) == ([], None)
        assert cooked.evidence.selection.thresholds == {"min_share": 0.02}
        assert ("tune" in [price.effort for price in cooked.beyond]) == tuning_is_beyond

    def test_so_is_what_is_for_an_encoder(self, pool):
        pool.tiny.shape = SHAPE.model_copy(update={"kind": "encoder"})
        with pytest.raises(InvalidParameter, match="'tiny' is an encoder: set 'verify' to false"):
            left_open(pool)
        assert pool.weighings == []

    @pytest.mark.parametrize("request_", [{"selector": {"kind": "gmm"}}, {"recipe": BY_HAND}])
    def test_a_selector_or_a_recipe_leaves_nothing_open(self, pool, request_):
        assert (left_open(pool, **request_).evidence.search, pool.weighings) == (None, [])

    def test_the_namespaces_default_goes_before_it(self, pool):
        set_tuning(pool, "default")
        assert left_open(pool).evidence.search.effort == "tune"
        assert (left_open(pool, verify=False).evidence.search, pool.weighings) == (None, [])

    @pytest.mark.parametrize(("settled", "default"), [("instant", "quick"), (None, "instant")])
    def test_a_job_takes_the_effort_that_was_settled_when_its_request_was_made(self, pool, settled, default):
        pool.registry = replace(pool.registry, default_effort=default)
        cooked = left_open(pool, settled=settled)
        assert (cooked.evidence.search, pool.weighings) == (None, [])
        assert cooked.evidence.selection.thresholds == {"min_share": 0.02}
        tuned = left_open(pool, settled="tune")
        assert tuned.evidence.search.effort == "tune"
        assert tuned.reason.endswith(TUNED_BY_DEFAULT)


def test_allowed_is_what_a_namespace_is_without_a_setting(pool):
    open_ = left_open(pool)
    set_tuning(pool, "allow")
    assert left_open(pool).digest == open_.digest
    assert pool.tunings == []
    assert tune(pool).recipe.tuning is not None


class TestWhatHasLearntFromASample:
    def listed(self, pool: ToyRegistry, digest: str, visible=None) -> list[str]:
        with pool.database.read() as catalogue:
            return [row.ref for row in catalogue.adapters.list(visible, tuned_on=digest, limit=9).rows]

    def test_it_is_found_by_the_sample_wherever_it_is_until_it_is_retired(self, pool):
        first, kept = tune(pool, name="acme/leases"), tune(pool, name="other/leases", keep="leases")
        other = pool.cook(sample={"texts": SAMPLE["texts"][:30]}, effort="tune", verify=True)
        pool.cook(sample=SAMPLE, effort="instant", name="acme/mixture")
        digest = first.recipe.tuning.sample
        assert self.listed(pool, digest) == [kept.model, first.model] == ["other/leases@1", "acme/leases@1"]
        assert self.listed(pool, digest, ("acme",)) == ["acme/leases@1"]
        assert self.listed(pool, other.recipe.tuning.sample) == [other.model]
        with pool.database.write() as catalogue:
            catalogue.adapters.retire(first.soup_id)
        assert self.listed(pool, digest) == ["other/leases@1"]
