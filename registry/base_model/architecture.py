"""Base models by their configuration alone: refuse those that cannot be served, read the shape of the others.

The model is built on torch's meta device to read its modules and the sizes of its keys and values, in milliseconds and
without its weights. Called by `loading`. An encoder (BERT and its kin) is loaded without any head or pooler: adapters
read the last hidden states. `check_model` is for models that other programs have loaded.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from torch import nn
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, DynamicCache
from transformers.initialization import no_init_weights
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    MODEL_MAPPING,
    MODEL_MAPPING_NAMES,
)
from transformers.pytorch_utils import Conv1D

from registry.base_model.build_lock import BUILDING
from registry.errors import Incompatible, Unavailable, more_problems
from registry.names import Digest
from registry.spec import BaseEntry, BaseKind, BaseShape

_SIZES = ("hidden_size", "num_hidden_layers", "max_position_embeddings", "vocab_size")
SHOWN = 20
"""Most reasons that an error lists."""
_UNUSABLE = (ValueError, TypeError, KeyError, AttributeError, ArithmeticError)
"""Errors of transformers for numbers that make no model."""
_NO_PASS = (ValueError, TypeError, KeyError, AttributeError, ArithmeticError, RuntimeError, IndexError, AssertionError)
"""Errors of a model that does not run with a plain cache, or not on the meta device."""


def usable_config(folder: Path, entry: BaseEntry) -> Any:
    """The configuration in `folder`; raises Unavailable, with every reason, where it is none of the entry's kind.

    Code that comes with a model is never run: a family that transformers does not know is refused.
    """
    base_id = entry.id
    try:
        config: Any = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except (*_UNUSABLE, OSError, RecursionError, StrictDataclassError) as problem:
        raise Unavailable(f"Base model {base_id!r}: its configuration cannot be used: {problem}") from problem
    problems = _problems(config, entry.kind)
    if problems:
        raise Unavailable(f"Base model {base_id!r}: {'; '.join(problems)}.", problems=problems)
    return config


def _problems(config: Any, kind: BaseKind) -> list[str]:
    """The reasons why a model of this configuration cannot be a base model of this kind."""
    family, saved = str(config.model_type), list(getattr(config, "architectures", None) or [])
    named = f"a {saved[0]} (family {family!r})" if saved else f"of family {family!r}"
    refused = encoder_problems(config, named) if kind == "encoder" else _causal_problems(config, named)
    if refused:
        return refused
    if config.get_text_config() is not config:
        return [f"it is {named}, which takes more than text, and only models of text alone are served"]
    problems = [
        f"its configuration (family {family!r}) has no number {name!r}, which says how adapters and texts must fit"
        for name in _SIZES
        if type(getattr(config, name, None)) is not int
    ]
    if getattr(config, "quantization_config", None) is not None:
        problems.append("its weights are quantised, and adapters are put on float32, bfloat16 and float16 ones")
    if getattr(config, "transformers_weights", None) is not None:
        problems.append(
            f"its weights are in {config.transformers_weights!r} (transformers_weights), and only model.safetensors or "
            "the files of its index are read"
        )
    if family == "opt" and not config.do_layer_norm_before:
        problems.append("it is an OPT whose norms come after the sub-layers (do_layer_norm_before is false)")
    if family == "opt" and config.word_embed_proj_dim != getattr(config, "hidden_size", None):
        problems.append("it is an OPT whose embeddings are projected (word_embed_proj_dim is not hidden_size)")
    return problems


def _causal_problems(config: Any, named: str) -> list[str]:
    """The reasons why a model of this configuration, described by `named`, is no causal language model."""
    family, saved = str(config.model_type), set(getattr(config, "architectures", None) or [])
    if getattr(config, "is_encoder_decoder", False):
        return [f"it is {named}, an encoder-decoder, and not a causal language model"]
    if not encoder_problems(config, named):
        return [f"it is {named}, an encoder and not a causal language model: it needs kind = 'encoder'"]
    causal = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(family)
    if causal is None or (saved and not {causal, MODEL_MAPPING_NAMES.get(family)} & saved):
        return [f"it is {named}, and not a causal language model"]
    return []


def shape_from(config: Any, fingerprint: Digest, base_id: str, kind: BaseKind = "causal") -> BaseShape:
    """The shape of a base model: its sizes, its linear modules, and the sizes of its keys and values.

    Raises Unavailable where transformers cannot build the model from `config`.
    """
    model = _built(config, base_id, kind)
    return BaseShape(
        fingerprint=fingerprint,
        model_type=config.model_type,
        hidden_size=config.hidden_size,
        num_layers=config.num_hidden_layers,
        context=longest_text(model, config) if kind == "encoder" else _context(config),
        vocab_size=config.vocab_size,
        linears=_linears(model),
        kind=kind,
        kv=_kv_of(model, config.num_hidden_layers) if kind == "causal" else None,
    )


def _context(config: Any) -> int:
    """The context of a causal model. LongRoPE has other frequencies for longer texts, which cached keys do not have."""
    rope = getattr(config, "rope_parameters", None) or {}
    layers = [values for values in (rope, *rope.values()) if isinstance(values, dict)]  # some differ by type of layer
    ends: list[int] = [config.max_position_embeddings]
    ends += [values["original_max_position_embeddings"] for values in layers if values.get("rope_type") == "longrope"]
    return min(ends)


def count_parameters(config: Any, base_id: str, kind: BaseKind = "causal", *, untie_output: bool = False) -> int:
    """The number of parameters that the model of a configuration holds in memory; tied ones count once.

    With `untie_output` an output layer that is tied to the embedding counts by itself.
    """
    model: Any = _built(config, base_id, kind)
    model.tie_weights()
    count: int = sum(parameter.numel() for parameter in model.parameters())
    head = model.get_output_embeddings() if untie_output else None
    if head is not None and head.weight is model.get_input_embeddings().weight:
        count += head.weight.numel()
    return count


def _built(config: Any, base_id: str, kind: BaseKind) -> nn.Module:
    """The model on the meta device, where initial values would only cost time."""
    builder: Any = AutoModel if kind == "encoder" else AutoModelForCausalLM
    options = without_pooler(config) if kind == "encoder" else {}
    try:
        with BUILDING, no_init_weights(), torch.device("meta"):
            model: nn.Module = builder.from_config(config, trust_remote_code=False, **options)
    except (*_UNUSABLE, RuntimeError, ImportError) as problem:
        raise Unavailable(
            f"Base model {base_id!r}: no model can be built from its configuration: {problem}"
        ) from problem
    return model


def _linears(model: nn.Module) -> dict[str, tuple[int, int]]:
    """(inputs, outputs) of every linear module by its path, in the model's order."""
    linears: dict[str, tuple[int, int]] = {}
    for path, module in model.named_modules():
        if isinstance(module, nn.Linear):
            linears[path] = (module.in_features, module.out_features)
        elif isinstance(module, Conv1D):
            linears[path] = (module.nx, module.nf)
    return linears


def check_model(model: nn.Module, shape: BaseShape, edited: Iterable[str] = ()) -> None:
    """Raise Incompatible, with the reasons, where a model has another shape than a base model.

    Weights are not compared, nor embeddings and output layer, which may have been resized, but for modules whose paths
    are `edited`. A module of another class than torch's linear ones, such as a quantised one, is not compared either.
    """
    config: Any = getattr(model, "config", None)
    expected: dict[str, object] = {"model_type": shape.model_type, "num_hidden_layers": shape.num_layers}
    if shape.kv is not None and getattr(config, "num_key_value_heads", None) is not None:
        expected["num_key_value_heads"] = shape.kv[0]
    problems = []
    for name, value in expected.items():
        actual = getattr(config, name, None)
        if actual != value:
            problems.append(f"Its {name} is {actual!r} instead of {value!r}.")
    paths, linears = {path for path, _ in model.named_modules()}, _linears(model)
    for path in dict.fromkeys((*shape.layer_linears(), *edited)):
        if path not in paths or linears.get(path, shape.linears[path]) != shape.linears[path]:
            inputs, outputs = shape.linears[path]
            problems.append(f"It has no linear module {path!r} of {inputs} inputs and {outputs} outputs.")
    if problems:
        raise Incompatible(
            f"The model is not the adapter's base model. {problems[0]}{more_problems(len(problems), stop='.')}",
            param="base_model",
            problems=problems[:SHOWN],
        )


def _kv_of(model: Any, layers: int) -> tuple[int, int] | None:
    """(heads, size of a head) of the keys and of the values of each of `layers`; None if they differ in size.

    The caches of some families differ from their configurations: one head of several, keys wider than values, layers
    that differ, or other states. So the sizes are read from the cache of a pass over the model.

    Also returns None if such a pass, or one over the transformer below the head, does not go through the model's
    decoder exactly once, because a prefix is inserted there. The same holds if the pass depends on values (dynamic
    RoPE). `model` is a causal language model on the meta device; nothing is computed.
    """
    passes: list[Any] = []
    try:
        model.set_experts_implementation("batched_mm")  # the usual one loops over the experts that the values choose
        handle = model.get_decoder().register_forward_pre_hook(lambda *_: passes.append(None))
        whole, transformer = _sizes(model, layers), _sizes(model.base_model, layers)
    except _NO_PASS:
        return None
    handle.remove()
    return whole if whole == transformer and len(passes) == 2 else None


@torch.no_grad()
def _sizes(model: Any, layers: int) -> tuple[int, int] | None:
    cache = DynamicCache()
    ids = torch.zeros((1, 1), dtype=torch.long, device="meta")
    embedded = model.get_input_embeddings()(ids)  # among ids some families look for padding, and these have no values
    model.eval()(inputs_embeds=embedded, past_key_values=cache, use_cache=True)
    cached: list[Any] = cache.layers  # one that keeps something else than keys and values is an AttributeError
    sizes = {tuple(state.shape) for layer in cached for state in (layer.keys, layer.values)}
    if len(cached) != layers or len(sizes) != 1:
        return None
    rows, heads, time, size = sizes.pop()
    return (heads, size) if (rows, time) == (1, 1) else None


def encoder_problems(config: Any, named: str) -> list[str]:
    """The reasons why the model of this configuration, described by `named`, cannot be a base of kind 'encoder'."""
    kind, saved = str(config.model_type), set(getattr(config, "architectures", None) or [])
    if getattr(config, "is_encoder_decoder", False):
        return [f"it is {named}, an encoder-decoder, and not an encoder"]
    if kind not in MODEL_FOR_MASKED_LM_MAPPING_NAMES or type(config) not in MODEL_MAPPING:
        causal = kind in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
        reason = ", which reads from left to right: leave out kind = 'encoder'" if causal else ", and not an encoder"
        return [f"it is {named}{reason}"]
    if getattr(config, "is_decoder", False) or MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(kind) in saved:
        return [f"it is {named} made to be a decoder (is_decoder), and not an encoder"]
    return []


def without_pooler(config: Any) -> dict[str, Any]:
    """The options with which transformers builds the encoder alone."""
    model: Any = MODEL_MAPPING[type(config)]
    return {"add_pooling_layer": False} if "add_pooling_layer" in inspect.signature(model).parameters else {}


def longest_text(model: nn.Module, config: Any) -> int:
    """The most tokens an encoder reads at once.

    RoBERTa's positions start after that of padding: of its 514, the first two belong to no token.
    """
    positions = int(config.max_position_embeddings)
    for path, module in model.named_modules():
        if path.endswith("position_embeddings") and isinstance(module, nn.Embedding) and module.padding_idx is not None:
            return positions - module.padding_idx - 1
    return positions


def tokenizer_problem(tokenizer: Any) -> str | None:
    """The tokens that an encoder's tokenizer lacks, as the end of a sentence; None where it has them."""
    lacking = [name for name in ("cls_token_id", "sep_token_id") if getattr(tokenizer, name, None) is None]
    return f"has a tokenizer without {' and '.join(lacking)}, which begin and end its texts" if lacking else None
