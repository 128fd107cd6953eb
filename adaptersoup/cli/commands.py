"""Commands of many options made from functions of few arguments.

An argument annotated with a dataclass gets an instance of it, with one option for each field. The class attribute
`SECTION` of the dataclass is the section of its options in the help. Annotated with `Annotated[THE_DATACLASS, ("b",
"a")]`, for these of its fields in this order. An argument annotated with `Annotated[ParsedFlags, flags]` stands for the
options of `adaptersoup.cli.flags.Flags`. Others are options of typer.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from typer.models import OptionInfo, ParameterInfo

from adaptersoup.cli.flags import Flags, ParsedFlags, keyword, nonempty_path


def command(function: Callable[..., None]) -> Callable[..., None]:
    """A function for typer with one argument an option, which calls `function`."""
    parameters = list(inspect.signature(function, eval_str=True).parameters.values())

    def run(**values: Any) -> None:
        function(**arguments_of(parameters, values))

    return as_command(run, parameters, like=function)


def as_command(
    run: Callable[..., None], parameters: Iterable[inspect.Parameter], *, like: Callable[..., None]
) -> Callable[..., None]:
    """Give `run` the options of these parameters as its signature, and the name and docstring of `like`."""
    options = options_of(parameters)
    for option in options:
        _refuse_empty_path(option.annotation)
    run.__name__, run.__doc__ = like.__name__, like.__doc__
    run.__annotations__ = {option.name: option.annotation for option in options}
    run.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]
    return run


def options_of(parameters: Iterable[inspect.Parameter]) -> list[inspect.Parameter]:
    """The options, as parameters that typer reads, that the parameters of a function stand for."""
    options = []
    for parameter in parameters:
        kind, selection = _kind_and_selection(parameter)
        if isinstance(selection, Flags):
            options += selection.parameters()
        elif is_dataclass(kind):
            options += options_of(_fields_of(kind, selection))
        else:
            options.append(keyword(parameter.name, kind, parameter.default))
    return options


def arguments_of(parameters: Iterable[inspect.Parameter], values: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a function with these parameters, from typer's values by the names of their options."""
    return {parameter.name: _argument(parameter, values) for parameter in parameters}


def _argument(parameter: inspect.Parameter, values: Mapping[str, Any]) -> Any:
    kind, selection = _kind_and_selection(parameter)
    if isinstance(selection, Flags):
        return ParsedFlags(selection, {name: values[name] for name in selection})
    if isinstance(kind, type) and is_dataclass(kind):
        return kind(**arguments_of(_fields_of(kind, selection), values))
    return values[parameter.name]


def _kind_and_selection(parameter: inspect.Parameter) -> tuple[Any, Any]:
    """A parameter's type, and the Flags or the names of fields that it is annotated with, if any."""
    kind, selection = parameter.annotation, None
    if get_origin(kind) is Annotated and isinstance(get_args(kind)[1], Flags | tuple):
        kind, selection = get_args(kind)
    return kind, selection


def _fields_of(group: Any, names: Sequence[str] | None) -> list[inspect.Parameter]:
    """The fields of a dataclass as parameters: all, or those of these names in this order."""
    hints = {name: _in_section(hint, group) for name, hint in get_type_hints(group, include_extras=True).items()}
    parameters = {
        field.name: keyword(
            field.name, hints[field.name], inspect.Parameter.empty if field.default is MISSING else field.default
        )
        for field in fields(group)
    }
    return [parameters[name] for name in names or parameters]


def _in_section(hint: Any, group: Any) -> Any:
    """The annotation of a field; an option without a section of its own gets the group's."""
    section = getattr(group, "SECTION", None)
    if section is None or get_origin(hint) is not Annotated:
        return hint
    kind, *metadata = get_args(hint)
    options = [copy(value) if isinstance(value, OptionInfo) else value for value in metadata]
    for option in options:
        if isinstance(option, OptionInfo):
            option.rich_help_panel = option.rich_help_panel or section
    return Annotated[(kind, *options)]


def _refuse_empty_path(annotation: Any) -> None:
    """Let an option or argument for paths refuse an empty text, which typer takes for the current folder."""
    kind, *metadata = get_args(annotation) or (None,)
    for value in metadata:
        if isinstance(value, ParameterInfo) and _has_paths(kind):
            value.parser = nonempty_path


def _has_paths(kind: Any) -> bool:
    """Return True for Path, a list of them, and a union with either."""
    return kind is Path or any(map(_has_paths, get_args(kind)))
