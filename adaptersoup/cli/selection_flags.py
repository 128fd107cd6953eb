"""The options of `fit`, `select`, `cook` and `compare` for the selector, its options and its pool.

Each sets a field of `registry.spec.CookRequest`. Flags that contradict each other are usage errors.
"""

from __future__ import annotations

from typing import Any, Literal

import typer
from pydantic import TypeAdapter, ValidationError

from adaptersoup.cli.flags import Flag, Flags, ParsedFlags, key_values, usage_error
from registry.spec import CookRequest, PoolRequest, SelectOptions, SelectorSpec

SELECTOR = ("selector", "paper", "encoder", "set", "single", "max_ingredients", "top")
POOL = ("base", "pool_tag", "pool_namespace", "pool_method")
SELECTION = Flags(
    CookRequest,
    {
        "selector": Flag("selector.kind", "How to choose adapters; by default posterior."),
        "paper": Flag("selector.mode", "Use gmm exactly as in the AdapterSoup paper.", switch="paper"),
        "encoder": Flag("selector.encoder", "Encoder of texts for cosine; by default {default}."),
        "set": Flag(
            "", "Parameter of the selector, such as covariance=full; repeatable.", kind=list[str], metavar="K=V"
        ),
        "single": Flag("options.single", "Use only the best adapter, whatever its score."),
        "max_ingredients": Flag(
            "options.max_ingredients",
            "Maximum number of adapters; by default 5, with effort thorough 32.",
            limits=(1, 64),
        ),
        "top": Flag(
            "options.when_none",
            "Use the best adapter if none passes the threshold, instead of abstaining.",
            switch="top",
        ),
        "base": Flag("pool.base_model", "Base model of the pool, if there are several."),
        "pool_tag": Flag("pool.tag", "Only adapters with this tag."),
        "pool_namespace": Flag("pool.namespaces", "Only adapters of this namespace; repeatable."),
        "pool_method": Flag(
            "pool.method",
            "Only adapters of this method; different methods cannot be mixed.",
            kind=Literal["bottleneck", "lora", "prefix", "union"],
        ),
    },
    {"Selection": SELECTOR, "Pool": POOL},
)

_SELECTOR: TypeAdapter[SelectorSpec] = TypeAdapter(SelectorSpec)


def selector_of(flags: ParsedFlags) -> SelectorSpec | None:
    """The selector of the flags, None without any; raises a usage error for contradictions."""
    kind, paper, encoder = flags["selector"], "paper" in flags, flags["encoder"]
    if paper and kind not in (None, "gmm"):
        raise typer.BadParameter(f"--paper is a mode of gmm; drop it or '--selector {kind}'.")
    if encoder is not None and kind not in (None, "cosine"):
        raise typer.BadParameter("--encoder is an option of '--selector cosine'; gmm uses the base model's vectors.")
    if paper and encoder is not None:
        raise typer.BadParameter("--paper is a mode of gmm and --encoder an option of cosine; drop one.")
    values: dict[str, Any] = key_values(flags["set"] or (), "--set")
    if kind is None and not (paper or encoder or values):
        return None
    values["kind"] = "cosine" if encoder else "gmm"
    try:
        return _SELECTOR.validate_python(values | flags.nested().get("selector", {}))
    except ValidationError as error:
        raise usage_error(error, {name: f"--set {name}" for name in values}) from None


def options_of(flags: ParsedFlags) -> SelectOptions:
    """The options of a selection."""
    return SelectOptions.model_validate(flags.nested().get("options", {}))


def pool_of(flags: ParsedFlags) -> PoolRequest:
    """The pool of the flags; the server fills fields that are not set."""
    try:
        return PoolRequest.model_validate(flags.nested().get("pool", {}))
    except ValidationError as error:
        flags_by_field = {path.removeprefix("pool."): flag for path, flag in SELECTION.by_path.items()}
        raise usage_error(error, flags_by_field) from None
