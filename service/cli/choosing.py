"""Options that several verbs share: which selector, over which pool.

Used by `fit`, `select`, `cook` and `compare`; turns flags into values of `registry.spec`, and flags that contradict
each other into usage errors.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import typer
from pydantic import TypeAdapter, ValidationError

from registry.spec import UNION_MEMBERS, PoolRequest, SelectOptions, SelectorSpec

Kind = Literal["gmm", "cosine", "uniform"]
KindOption = Annotated[Kind | None, typer.Option("--selector", help="How adapters are chosen; by default gmm.")]
PaperOption = Annotated[bool, typer.Option("--paper", help="gmm exactly as in the AdapterSoup paper.")]
EncoderOption = Annotated[
    Literal["base", "sbert"] | None,
    typer.Option("--encoder", help="What embeds text for cosine; by default sbert."),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", help="A parameter of the selector, such as covariance=full; may be repeated.", metavar="K=V"),
]
BaseOption = Annotated[str | None, typer.Option("--base", help="Base model of the pool, where there are several.")]
PoolTagOption = Annotated[str | None, typer.Option("--pool-tag", help="Only adapters with this tag.")]
PoolNamespaceOption = Annotated[
    list[str] | None, typer.Option("--pool-namespace", help="Only adapters of this namespace; may be repeated.")
]
PoolMethodOption = Annotated[
    Literal["bottleneck", "lora", "prefix", "union"] | None,
    typer.Option("--pool-method", help="Only adapters of this method: those of another cannot be mixed with them."),
]
SingleOption = Annotated[bool, typer.Option("--single", help="Take the best adapter alone, whatever its score.")]
MaxOption = Annotated[
    int | None, typer.Option("--max-ingredients", min=1, max=64, help="At most so many adapters; by default 5.")
]
TopOption = Annotated[bool, typer.Option("--top", help="Take the best where nothing passes, instead of abstaining.")]

_SPEC: TypeAdapter[SelectorSpec] = TypeAdapter(SelectorSpec)
_KINDS = UNION_MEMBERS["selector"] | UNION_MEMBERS["mixing"]
"""What is no field in a location; not the methods of adapters, of which one is a field's name too."""


def selector_of(
    kind: Kind | None, *, paper: bool = False, encoder: str | None = None, parameters: Sequence[str] | None = None
) -> SelectorSpec | None:
    """The selector the flags describe, None where they say nothing; raises a usage error for contradictions."""
    if paper and kind not in (None, "gmm"):
        raise typer.BadParameter(f"--paper is a mode of gmm; drop it or '--selector {kind}'.")
    if encoder is not None and kind not in (None, "cosine"):
        raise typer.BadParameter("--encoder is an option of '--selector cosine'; gmm uses the base model's vectors.")
    if paper and encoder is not None:
        raise typer.BadParameter("--paper is a mode of gmm and --encoder an option of cosine; drop one.")
    values: dict[str, Any] = key_values(parameters or (), "--set")
    if kind is None and not (paper or encoder or values):
        return None
    values["kind"] = kind or ("cosine" if encoder else "gmm")
    values |= ({"mode": "paper"} if paper else {}) | ({"encoder": encoder} if encoder else {})
    try:
        return _SPEC.validate_python(values)
    except ValidationError as error:
        raise usage_error(error) from None


def options_of(*, single: bool = False, max_ingredients: int | None = None, top: bool = False) -> SelectOptions:
    """How the fitted selector is asked."""
    plain = SelectOptions(single=single, when_none="top" if top else "abstain")
    return plain if max_ingredients is None else plain.model_copy(update={"max_ingredients": max_ingredients})


def pool_of(
    *, base: str | None = None, tag: str | None = None, namespaces: Sequence[str] | None = None,
    method: str | None = None,
) -> PoolRequest:  # fmt: skip
    """The pool the flags describe; open fields are the server's to fill."""
    try:
        return PoolRequest(
            base_model=None if base is None else base.removeprefix("base/"),
            tag=tag,
            namespaces=tuple(namespaces) if namespaces else None,
            method=method,
        )
    except ValidationError as error:
        raise usage_error(error) from None


def key_values(pairs: Sequence[str], option: str) -> dict[str, str | int | float | bool | None]:
    """`k=v` flags as a dict; a value that reads as a JSON number, true, false or null is one, else it is text."""
    found: dict[str, str | int | float | bool | None] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise typer.BadParameter(f"{option} takes key=value, not {pair!r}.")
        found[name] = _scalar(value)
    return found


def _scalar(text: str) -> str | int | float | bool | None:
    try:
        value = json.loads(text, parse_constant=str)
    except ValueError:
        return text
    return text if isinstance(value, str | list | dict) else value


def usage_error(error: ValidationError, names: Mapping[str, str] | None = None) -> typer.BadParameter:
    """A value people gave that does not fit, as a usage error that names the field."""
    found = error.errors(include_url=False)[0]
    field = ".".join(str(part) for part in found["loc"] if part not in _KINDS)
    return typer.BadParameter(f"{(names or {}).get(field, field)}: {found['msg'].removeprefix('Value error, ')}.")
