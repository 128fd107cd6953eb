"""Read and write the options of an AdapterHub checkpoint (`BnConfig` of adapters 1.3). Knows no tensors.

Options that change the logits and have no counterpart here are refused by name, all of them at once; options of
training alone (dropout, initialisation) are ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from registry.errors import Incompatible, InvalidManifest, UnknownMethod, more_problems
from registry.spec import BottleneckConfig

VERSION = "adapters.1.3.0"
"""The release whose format is written; a file without a version is read as one of releases before versions."""

MAX_SCALE = 1e6
Scaling = Literal["constant", "learned", "channel"]
Structure = Literal["houlsby", "pfeiffer", "bapna_firat", "parallel"]
Activation = Literal["relu", "gelu", "swish"]
Input = Literal["module", "residual"]

_ACTIVATIONS: dict[str, Activation] = {"relu": "relu", "gelu": "gelu", "swish": "swish", "silu": "swish"}
_BEFORE_VERSIONS = {"gelu": "gelu_new", "gelu_orig": "gelu"}  # loading.py, ACTIVATION_RENAME
_FLAGS = {
    "mh_adapter": None,
    "output_adapter": None,
    "original_ln_before": False,
    "original_ln_after": True,
    "ln_before": False,
    "is_parallel": False,
}
_REFUSED = {
    "ln_after": "a LayerNorm after the adapter",
    "use_gating": "a gate on the adapter's output",
    "phm_layer": "hypercomplex projections (Compacter)",
    "inv_adapter": "an invertible adapter after the embeddings",
    "invertible_adapter": "an invertible adapter after the embeddings",
    "cross_adapter": "an adapter after cross attention",
    "leave_out": "layers without an adapter",
}
_RECOGNISED = {
    *_FLAGS,
    *_REFUSED,
    "non_linearity",
    "scaling",
    "residual_before_ln",
    # of training only, or shapes of the tensors
    "dropout",
    "stochastic_depth",
    "init_weights",
    "init_weights_seed",
    "reduction_factor",
    # details of options that are refused above
    "adapter_residual_before_ln",
    "inv_adapter_reduction_factor",
    "phm_dim",
    "factorized_phm_W",
    "shared_W_phm",
    "shared_phm_rule",
    "factorized_phm_rule",
    "phm_c_init",
    "phm_init_range",
    "learn_phm",
    "hypercomplex_nonlinearity",
    "phm_rank",
    "phm_bias",
}


@dataclass(frozen=True)
class Options:
    """The options of a checkpoint as fields of `BottleneckConfig` without the width, which is read from its tensors.

    With `scaling` `learned` there is a tensor of one factor a layer, with `channel` of one for each hidden unit, which
    is multiplied into the up-projection.
    """

    structure: Structure
    activation: Activation
    scale: float
    scaling: Scaling
    input: Input

    def config(self, width: int) -> BottleneckConfig:
        """The configuration of bottlenecks this wide."""
        return BottleneckConfig(
            structure=self.structure,
            bottleneck=width,
            activation=self.activation,
            scale=self.scale,
            input=self.input,
            trained_norms=self.structure != "houlsby",
        )


def read_options(config: object, *, versioned: bool, post_norm: bool = False) -> Options:
    """The options in `config` of a checkpoint's adapter_config.json; `versioned` where the file names a version.

    `post_norm` is for base models that normalise after their sub-modules, as BERT does: there the same options mean
    another structure or input. Raises InvalidManifest where `config` is no table, else UnknownMethod with every option
    that has no counterpart.
    """
    if not isinstance(config, Mapping):
        raise InvalidManifest("'config' in adapter_config.json is not a table of options.", param="config")
    if config.get("architecture"):
        raise UnknownMethod(
            f"It is a checkpoint of {str(config['architecture'])[:40]!r}; bottleneck adapters of AdapterHub are "
            "converted (seq_bn, double_seq_bn, par_bn).",
            param="architecture",
        )
    problems = _refused(config)
    flags = {name: config.get(name, default) for name, default in _FLAGS.items()}
    problems += [f"Option {n!r} is {_quoted(v)}, not true or false." for n, v in flags.items() if type(v) is not bool]
    activation = _activation(config.get("non_linearity"), versioned=versioned, problems=problems)
    scale, scaling = _scaling(config.get("scaling", 1.0), problems)
    residual_before_ln = config.get("residual_before_ln", True)
    placement = None if problems else _placement(flags, residual_before_ln, problems, post_norm=post_norm)
    if problems or placement is None:
        first = f"{problems[0].rstrip('.')}{more_problems(len(problems))}"
        raise UnknownMethod(f"The checkpoint cannot be converted: {first}.", param="config", problems=problems)
    return Options(structure=placement[0], input=placement[1], activation=activation, scale=scale, scaling=scaling)


def _quoted(value: object) -> str:
    return repr(value)[:60]


def _refused(config: Mapping[str, Any]) -> list[str]:
    """One sentence for every option without counterpart; unknown ones that are null, false or empty are ignored."""
    problems = [
        f"Option {name!r} is {_quoted(config[name])}: {feature} has no counterpart here."
        for name, feature in _REFUSED.items()
        if config.get(name)
    ]
    return problems + [
        f"Option {str(name)[:60]!r} is not known." for name, on in config.items() if on and name not in _RECOGNISED
    ]


def _activation(name: object, *, versioned: bool, problems: list[str]) -> Activation:
    text = name.lower() if isinstance(name, str) else ""
    current = text if versioned else _BEFORE_VERSIONS.get(text, text)
    if current not in _ACTIVATIONS:
        old = f" ({current!r} today)" if current != text else ""
        problems.append(f"Option 'non_linearity' is {_quoted(name)}{old}; relu, gelu and swish are known here.")
    return _ACTIVATIONS.get(current, "relu")


def _scaling(value: object, problems: list[str]) -> tuple[float, Scaling]:
    if value == "learned":
        return 1.0, "learned"
    if value == "channel":
        return 1.0, "channel"
    if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= MAX_SCALE:
        return float(value), "constant"
    problems.append(
        f"Option 'scaling' is {_quoted(value)}; a number up to {MAX_SCALE:g}, 'learned' or 'channel' is needed."
    )
    return 1.0, "constant"


def _placement(
    flags: Mapping[str, bool | None], residual_before_ln: object, problems: list[str], *, post_norm: bool
) -> tuple[Structure, Input] | None:
    """The structure and input for these options, or None with the reason added to `problems`."""
    if not flags["output_adapter"]:
        problems.append("Option 'output_adapter' is false: adapters after attention alone have no counterpart here.")
        return None
    if flags["is_parallel"]:
        wrong = [name for name in ("mh_adapter", "ln_before") if flags[name]]
        problems += [f"Option {name!r} with 'is_parallel' has no counterpart here." for name in wrong]
        if not flags["original_ln_after"]:
            problems.append("Option 'original_ln_after' is false: the residual connection is lost.")
        return None if problems else ("parallel", "module" if post_norm else "residual")
    read_input = _post_norm_input if post_norm else _pre_norm_input
    adapter_input = read_input(flags, residual_before_ln)
    if adapter_input is None:
        fault = "have no counterpart on this family" if post_norm else "lose or repeat the residual connection"
        problems.append(
            f"Options original_ln_before={flags['original_ln_before']}, original_ln_after={flags['original_ln_after']}"
            f", ln_before={flags['ln_before']}, residual_before_ln={_quoted(residual_before_ln)} {fault}."
        )
        return None
    if not flags["mh_adapter"]:
        return ("bapna_firat" if flags["ln_before"] else "pfeiffer"), adapter_input
    if flags["ln_before"] or adapter_input == "residual":
        name = "ln_before" if flags["ln_before"] else "original_ln_before"
        problems.append(f"Option {name!r} with 'mh_adapter' has no counterpart here.")
        return None
    return "houlsby", "module"


def _pre_norm_input(flags: Mapping[str, bool | None], residual_before_ln: object) -> Input | None:
    """The input of a sequential adapter on a pre-norm model; None where the residual is not added exactly once."""
    residual_after = flags["original_ln_after"]
    if flags["original_ln_before"]:
        return "residual" if residual_before_ln is residual_after else None
    return "module" if residual_after and residual_before_ln in (True, False) else None


def _post_norm_input(flags: Mapping[str, bool | None], residual_before_ln: object) -> Input | None:
    """The input of a sequential adapter on a post-norm model, whose norm takes the sum with the residual stream.

    None where other sums are normed. An adapter that reads the norm's output adds its update before a second pass
    through that norm (Pfeiffer). With its own norm, it adds the update after the model's norm (Bapna-Firat).
    """
    residual_after = flags["original_ln_after"]
    if not flags["original_ln_before"]:
        return "module" if residual_after and residual_before_ln in (True, False) else None
    norms_twice = not flags["ln_before"]
    return "residual" if residual_after is norms_twice and residual_before_ln is norms_twice else None


def write_options(config: BottleneckConfig, *, hidden_size: int, post_norm: bool = False) -> dict[str, Any]:
    """The options with which `adapters` computes the same as `config`; `post_norm` as in `read_options`.

    Raises Incompatible, all reasons at once, where the library has no option.
    """
    problems = []
    if config.structure == "parallel" and config.input == "module" and not post_norm:
        problems.append("A parallel adapter of AdapterHub reads the residual stream, and this one the normed argument.")
    if config.structure == "parallel" and config.input == "residual" and post_norm:
        problems.append("On this family a parallel adapter reads the residual stream with input 'module'.")
    if config.structure == "houlsby" and config.trained_norms:
        problems.append("AdapterHub keeps no trained LayerNorms of the base, and this Houlsby adapter has some.")
    if config.structure == "bapna_firat" and config.layer_norm_eps != 1e-5:
        problems.append(f"AdapterHub's LayerNorm has epsilon 1e-05, and this adapter's {config.layer_norm_eps:g}.")
    if problems:
        raise Incompatible(
            f"The adapter cannot be written for AdapterHub: {problems[0]}", param="config", problems=problems
        )
    after_the_norm = post_norm and config.structure == "bapna_firat" and config.input == "residual"
    return {
        "adapter_residual_before_ln": False,
        "is_parallel": config.structure == "parallel",
        "leave_out": [],
        "ln_after": False,
        "ln_before": config.structure == "bapna_firat",
        "mh_adapter": config.structure == "houlsby",
        "non_linearity": config.activation,
        "original_ln_after": not after_the_norm,
        "original_ln_before": config.input == "residual" and config.structure != "parallel",
        "output_adapter": True,
        "reduction_factor": _reduction_factor(hidden_size, config.bottleneck),
        "residual_before_ln": not after_the_norm,
        "scaling": config.scale,
    }


def _reduction_factor(hidden_size: int, width: int) -> float:
    """The factor for which the library computes this width: int(hidden_size // factor) (methods/bottleneck.py)."""
    exact = hidden_size / width
    if exact.is_integer():
        return int(exact)
    return exact if int(hidden_size // exact) == width else hidden_size / (width + 0.5)
