"""Models that others have loaded are compared with the shape of a base model."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
from torch import nn

from registry.base_model import LoadedBase, load_base
from registry.base_model.architecture import check_model
from registry.errors import Incompatible
from registry.spec import BaseEntry
from tests.tiny_models import build_tiny_base


def tiny(folder: Path, **config: object) -> LoadedBase:
    return load_base(BaseEntry(id="tiny", source=str(build_tiny_base(folder, **config))))


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> LoadedBase:
    return tiny(tmp_path_factory.mktemp("llama") / "base", model_type="llama")


def test_a_model_of_the_shape_fits_with_other_embeddings_too(llama: LoadedBase) -> None:
    model = copy.deepcopy(llama.model)
    check_model(model, llama.shape)
    model.resize_token_embeddings(310)
    check_model(model, llama.shape)


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"model_type": "gpt2"}, "Its model_type is 'gpt2' instead of 'llama'"),
        ({"model_type": "mistral"}, "Its model_type is 'mistral' instead of 'llama'"),  # with the same modules
        ({"model_type": "llama", "num_hidden_layers": 3}, "Its num_hidden_layers is 3 instead of 2"),
        ({"model_type": "llama", "num_key_value_heads": 4}, "Its num_key_value_heads is 4 instead of 2"),
    ],
)
def test_another_model_is_refused(llama: LoadedBase, tmp_path: Path, config: dict[str, object], reason: str) -> None:
    with pytest.raises(Incompatible, match=rf"is not the adapter's base model\. {reason}"):
        check_model(tiny(tmp_path / "base", **config).model, llama.shape)


def test_modules_of_other_classes_and_modules_that_no_adapter_edits_may_differ(llama: LoadedBase) -> None:
    model = copy.deepcopy(llama.model)
    model.model.layers[0].self_attn.q_proj = nn.Sequential(nn.Linear(32, 32))  # as a quantised layer has its own class
    model.lm_head = nn.Linear(32, 7, bias=False)
    check_model(model, llama.shape)
    with pytest.raises(Incompatible, match="no linear module 'lm_head' of 32 inputs"):
        check_model(model, llama.shape, ["lm_head"])


def test_every_reason_is_listed(llama: LoadedBase) -> None:
    model = copy.deepcopy(llama.model)
    del model.model.layers[1].mlp.up_proj
    model.model.layers[0].self_attn.q_proj = nn.Linear(32, 90)
    with pytest.raises(Incompatible, match=r"q_proj' of 32 inputs and 32 outputs\. \(1 more problem\.\)") as caught:
        check_model(model, llama.shape)
    assert "up_proj" in caught.value.problems[1]
    with pytest.raises(Incompatible, match="Its model_type is None"):
        check_model(nn.Linear(1, 1), llama.shape)
