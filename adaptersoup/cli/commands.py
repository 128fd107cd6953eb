"""Commands of many options made from functions of few arguments.

An argument annotated with a dataclass stands for one option a field, and gets an instance of it; annotated with
`Annotated[THE_DATACLASS, ("b", "a")]`, for these of its fields in this order. An argument annotated with
`Annotated[Given, flags]` stands for `adaptersoup.cli.flags.Flags`. Every other argument is typer's own.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from adaptersoup.cli.flags import Flags, Given, keyword

Values = Mapping[str, Any]
"""What typer read, by the names of the options."""


def command(function: Callable[..., None]) -> Callable[..., None]:
    """The function as typer reads it."""
    options, arguments = spread(inspect.signature(function, eval_str=True).parameters.values())
    return as_command(lambda **values: function(**arguments(values)), options, like=function)


def as_command(
    run: Callable[..., None], options: Sequence[inspect.Parameter], *, like: Callable[..., None]
) -> Callable[..., None]:
    """`run` with these options as typer reads it, under the name and with the docstring of another function."""

    def called(**values: Any) -> None:
        run(**values)

    called.__name__, called.__doc__ = like.__name__, like.__doc__
    called.__annotations__ = {option.name: option.annotation for option in options}
    called.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]
    return called


def spread(
    parameters: Iterable[inspect.Parameter],
) -> tuple[list[inspect.Parameter], Callable[[Values], dict[str, Any]]]:
    """The options that a function's parameters stand for, and what makes its arguments of the options' values."""
    options: list[inspect.Parameter] = []
    makers: dict[str, Callable[[Values], Any]] = {}
    for parameter in parameters:
        own, makers[parameter.name] = _spread_one(parameter)
        options += own
    return options, lambda values: {name: make(values) for name, make in makers.items()}


def _spread_one(parameter: inspect.Parameter) -> tuple[list[inspect.Parameter], Callable[[Values], Any]]:
    kind, about = parameter.annotation, None
    if get_origin(kind) is Annotated and isinstance(get_args(kind)[1], Flags | tuple):
        kind, about = get_args(kind)
    if isinstance(about, Flags):
        return about.parameters(), lambda values: Given(about, {name: values[name] for name in about})
    if isinstance(kind, type) and is_dataclass(kind):
        options, arguments = spread(_fields_of(kind, about))
        return options, lambda values: kind(**arguments(values))
    return [keyword(parameter.name, kind, parameter.default)], lambda values: values[parameter.name]


def _fields_of(group: Any, names: Sequence[str] | None) -> list[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    found = {
        field.name: keyword(
            field.name, hints[field.name], inspect.Parameter.empty if field.default is MISSING else field.default
        )
        for field in fields(group)
    }
    return [found[name] for name in names or found]
