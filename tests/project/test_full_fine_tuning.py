"""Training the base model or a part of it: what changes, what does not, and what is refused."""

from __future__ import annotations

import pytest

from benchmarks.full_fine_tuning import fine_tune, unfrozen
from registry.base_model import load_base
from registry.errors import InvalidParameter
from registry.spec import BaseEntry
from tests.tiny_models import build_tiny_base
from tests.training.conftest import TEXTS, VALID, state_hash
from training.data import Data
from training.hyperparameters import Hyperparameters
from training.tasks import TASKS

DATA = Data(TEXTS, VALID)
RECIPE = Hyperparameters(steps=4, batch=2, block=16, learning_rate=1e-3, evaluations=1)


def changed(base, tuned) -> set[str]:
    before = dict(base.model.named_parameters())
    return {name for name, value in tuned.base.model.named_parameters() if not value.equal(before[name])}


def parameters(model) -> dict[str, int]:
    return {name: value.numel() for name, value in model.named_parameters() if value.requires_grad}


@pytest.mark.parametrize(
    ("part", "inside"),
    [("all", ("",)), ("top", ("transformer.h.1.",)), ("norms", ("ln_1.", "ln_2.", "ln_f."))],
)
def test_a_part_is_trained_and_nothing_else_and_the_base_stays(base, part, inside):
    before = state_hash(base.model)
    tuned = fine_tune(base, DATA, hyperparameters=RECIPE, part=part)
    assert state_hash(base.model) == before
    found = changed(base, tuned)
    assert found
    assert all(any(one in name for one in inside) for name in found)
    assert tuned.outcome.valid_best < tuned.outcome.valid_before
    assert not parameters(tuned.base.model)


def test_how_many_parameters_each_part_has(base):
    d, layers = base.shape.hidden_size, base.shape.num_layers
    assert sum(parameters(unfrozen(base.model, "norms")).values()) == 2 * d * (2 * layers + 1)
    every = sum(value.numel() for value in base.model.parameters())
    assert sum(parameters(unfrozen(base.model, "all")).values()) == every
    one, two = (sum(parameters(unfrozen(base.model, "top", layers=n)).values()) for n in (1, 2))
    assert two == 2 * one == 2 * (12 * d * d + 13 * d)


def test_norms_of_another_kind_are_found(tmp_path):
    llama = load_base(BaseEntry(id="tiny", source=str(build_tiny_base(tmp_path, model_type="llama"))))
    assert set(parameters(unfrozen(llama.model, "norms"))) >= {"model.norm.weight"}
    assert sum(parameters(unfrozen(llama.model, "norms")).values()) == 5 * llama.shape.hidden_size


def test_the_same_seeds_give_the_same_bits(base):
    one, other = (state_hash(fine_tune(base, DATA, hyperparameters=RECIPE).base.model) for _ in range(2))
    assert one == other


def test_what_cannot_be_is_refused(base):
    for layers in (0, 3):
        with pytest.raises(InvalidParameter, match=f"2 layers, and {layers}"):
            fine_tune(base, DATA, hyperparameters=RECIPE, part="top", layers=layers)
    with pytest.raises(InvalidParameter, match="context of 64"):
        fine_tune(base, DATA, hyperparameters=RECIPE.model_copy(update={"block": 65}))
    with pytest.raises(InvalidParameter, match="needs a head"):
        fine_tune(base, DATA, hyperparameters=RECIPE, task=TASKS["classification"])
    with pytest.raises(InvalidParameter, match="diverged"):
        fine_tune(base, DATA, hyperparameters=RECIPE.model_copy(update={"learning_rate": 1e4}))
