"""Training the base model or a part of it: what changes, what does not, and what is refused."""

from __future__ import annotations

import pytest

from benchmarks.full_fine_tuning import fine_tune, unfrozen
from registry.errors import InvalidParameter
from tests.training.conftest import TEXTS, VALID, state_hash
from training.data import Data
from training.hyperparameters import Hyperparameters
from training.tasks import TASKS
from training.tasks.classification import Labelled

DATA = Data(TEXTS, VALID)
RECIPE = Hyperparameters(steps=4, batch=2, block=16, learning_rate=1e-3, evaluations=1)


@pytest.mark.parametrize(
    ("trained_part", "inside"), [("all", ("",)), ("top", ("transformer.h.1.",)), ("norms", ("ln_1.", "ln_2.", "ln_f."))]
)
def test_a_part_is_trained_and_nothing_else_and_the_base_stays(base, trained_part, inside):
    digest, old_parameters = state_hash(base.model), dict(base.model.named_parameters())
    tuned = fine_tune(base, DATA, hyperparameters=RECIPE, trained_part=trained_part)
    assert state_hash(base.model) == digest
    changed = {name for name, value in tuned.base.model.named_parameters() if not value.equal(old_parameters[name])}
    assert changed == {name for name in old_parameters if any(fragment in name for fragment in inside)}
    assert tuned.valid_losses[1] < tuned.valid_losses[0]
    assert not any(value.requires_grad for value in tuned.base.model.parameters())


@pytest.mark.parametrize("trained_part", ["top", "norms"])
def test_a_head_is_trained_with_the_part(base, trained_part):
    items = [Labelled(f"film {number} is {'good' if number % 2 else 'bad'}", str(number % 2)) for number in range(24)]
    recipe = RECIPE.model_copy(update={"steps": 30, "batch": 8})
    tuned = fine_tune(
        base, Data(items, items[:6]), hyperparameters=recipe, trained_part=trained_part, task=TASKS["classification"]
    )
    assert tuned.head is not None
    assert tuned.valid_losses[1] < tuned.valid_losses[0]
    metrics = TASKS["classification"].metrics(tuned.base, tuned.head, items[:6], block=16)
    assert metrics["loss"] == pytest.approx(tuned.valid_losses[1], rel=1e-4)


def test_norms_of_another_kind_are_found(bases):
    llama = bases("llama")
    trained = {n: v.numel() for n, v in unfrozen(llama.model, "norms").named_parameters() if v.requires_grad}
    assert "model.norm.weight" in trained
    assert sum(trained.values()) == 5 * llama.shape.hidden_size


@pytest.mark.parametrize(
    ("fields", "changes", "match"),
    [
        ({"trained_part": "top", "layers": 0}, {}, "2 layers, and 0"),
        ({"trained_part": "top", "layers": 3}, {}, "2 layers, and 3"),
        ({}, {"block": 65}, "context of 64"),
        ({}, {"learning_rate": 1e4}, "diverged"),
    ],
)
def test_what_cannot_be_is_refused(base, fields, changes, match):
    with pytest.raises(InvalidParameter, match=match):
        fine_tune(base, DATA, hyperparameters=RECIPE.model_copy(update=changes), **fields)
