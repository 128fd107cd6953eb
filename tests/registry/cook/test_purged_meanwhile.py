"""An adapter that is purged in the middle of a cook: left out with its reason, or named where it was asked for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Literal

import pytest

from registry.cook import ingredients
from registry.cook.job import Computations
from registry.errors import DamagedBlob, Retired
from registry.spec import Cooked, PoolSpec, UniformSpec, Weighing, WeighingRequest
from tests.registry.toy_registry import SHAPE, ToyRegistry, passages, purging

POOL = PoolSpec(base_fingerprint=SHAPE.fingerprint)
SAMPLE = {"texts": passages("law", 15, seed=1) + passages("tax", 15, seed=1)}
RECIPE = {"ingredients": [{"ref": f"acme/{name}", "weight": 0.5} for name in ("law", "tax")]}


@pytest.fixture
def three(verbs: ToyRegistry) -> ToyRegistry:
    for seed, name in enumerate(("law", "tax", "code")):
        verbs.ready(f"acme/{name}", seed=seed)
    verbs.tiny.anything_helps = 0.5
    return verbs


def reason(cooked: Cooked) -> str:
    """Why acme/law was left out."""
    assert cooked.evidence.selection is not None
    assert "acme/law@1" not in [one.ref for one in cooked.evidence.selection.selected]
    return {one.ref: one.reason for one in cooked.evidence.selection.left_out}["acme/law@1"]


@pytest.mark.parametrize("moment", ["once it is chosen", "before its weights are read", "before the soup is stored"])
def test_a_cook_goes_on_without_it_and_says_why(
    three: ToyRegistry, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    where = {
        "once it is chosen": (ingredients, "rows_of"),
        "before its weights are read": (three.blobs, "read"),
        "before the soup is stored": (three.blobs, "put_bytes"),
    }
    three.fit(POOL, UniformSpec(), None)
    purging(three, monkeypatch, *where[moment])
    cooked = three.cook(sample=SAMPLE, selector={"kind": "uniform"}, name="acme/soup")
    assert "purged since the fit" in reason(cooked)
    assert cooked.recipe is not None
    assert len(cooked.recipe.ingredients) == 2
    with three.database.read() as catalogue:
        stored = [row.ref for row in catalogue.adapters.list(None, kind="soup", limit=9).rows]
        assert catalogue.soups.children(cooked.recipe.ingredients[0].digest, None)[0].ref == cooked.model
    assert stored == ["acme/soup@1"]  # and no soup of it, which its purge could not have named


@pytest.mark.parametrize("effort", ["quick", "tune"])
def test_a_search_and_a_training_begin_again(
    three: ToyRegistry, monkeypatch: pytest.MonkeyPatch, effort: Literal["quick", "tune"]
) -> None:
    three.helpful = {three.named(f"acme/{name}").weights_blob: 0.4 for name in ("law", "tax")}
    three.cook(sample=SAMPLE, effort="instant", verify=True)

    def weigh(base_id: str, request: WeighingRequest) -> Weighing:
        for one in request.candidates:  # as the process that weighs does
            three.blobs.read(one.blob)
        return three.weigh(base_id, request)

    processes = SimpleNamespace(weigh=weigh, tune=three.tune)
    purging(three, monkeypatch, processes, "weigh" if effort == "quick" else "tune")
    three.computations = Computations(
        three.fit, lambda *asked: processes.weigh(*asked), lambda *asked: processes.tune(*asked), three.measure
    )
    cooked = three.cook(sample=SAMPLE, effort=effort, verify=True, name="acme/soup")
    assert "purged since the fit" in reason(cooked)
    assert "beginning again without what was purged meanwhile" in three.said


@pytest.mark.parametrize("where", ["read", "put_bytes"])
def test_where_it_was_named_the_answer_names_it(
    three: ToyRegistry, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    purging(three, monkeypatch, three.blobs, where)
    with pytest.raises(Retired, match=r"acme/law@1 was purged while the soup was made: nothing of it is left"):
        three.cook(recipe=RECIPE, name="acme/soup")


def test_what_others_still_have_is_mixed(three: ToyRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    three.push("other/law", seed=0)
    purging(three, monkeypatch, three.blobs, "read")
    assert not three.cook(recipe=RECIPE, name="acme/soup").abstained


def test_damage_is_no_purge(three: ToyRegistry) -> None:
    three.blobs.damage(three.named("acme/law").weights_blob, b"other")
    three.fit(POOL, UniformSpec(), None)
    with pytest.raises(DamagedBlob, match="push the file again"):
        three.cook(sample=SAMPLE, selector={"kind": "uniform"})
