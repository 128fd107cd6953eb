"""Options made from the fields of a pydantic model: type, minimum and default are the field's, the help is the table's.

`adaptersoup.cli.commands` puts them into a command; modules named `..._flags` have the tables. Never imports torch.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from math import inf
from pathlib import Path
from types import GenericAlias, NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import typer
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from registry.spec import UNION_MEMBERS
from registry.spec.wording import describe_error

_MEMBERS = UNION_MEMBERS["selector"] | UNION_MEMBERS["mixing"]
"""Members of unions, which pydantic's error locations name beside the fields.

Methods of adapters are not among them, since one is a field's name too.
"""


@dataclass(frozen=True)
class Flag:
    """An option for the field at `path` of a model (`recipe.steps`), or for no field if the path is empty.

    `{default}` in the help is the field's default. These override the field: `name` is the flag as it is typed, `kind`
    the type, `limits` the minimum and the maximum; `parse` is applied to the option's value. An option with `switch`
    takes no value and sets this one. With `show_default` the field's default is the option's too, and is shown in the
    help; else an absent option leaves the field unset. `section` is its section in the help.
    """

    path: str
    help: str
    name: str | None = None
    kind: Any = None
    limits: tuple[int | None, int | None] | None = None
    parse: Callable[[Any], Any] | None = None
    switch: Any = None
    show_default: bool = False
    metavar: str | None = None
    section: str | None = None


class Flags(dict[str, Flag]):
    """Options for the fields of `model`, by the names of their parameters, in the order of the help.

    `sections` are the names of the options in each section of the help.
    """

    def __init__(
        self, model: type[BaseModel], flags: Mapping[str, Flag], sections: Mapping[str, Sequence[str]] | None = None
    ) -> None:
        super().__init__(flags)
        for title, names in (sections or {}).items():
            self.update({name: replace(self[name], section=title) for name in names})
        self.model = model

    def only(self, *names: str) -> Flags:
        """The flags of these names, in this order."""
        return Flags(self.model, {name: self[name] for name in names})

    def without(self, *names: str) -> Flags:
        """All flags but these."""
        return self.only(*(name for name in self if name not in names))

    def flag_name(self, name: str) -> str:
        """A flag as it is typed, such as `--learning-rate`."""
        return (self[name].name or "--" + name.replace("_", "-")).partition("/")[0]

    @property
    def by_path(self) -> dict[str, str]:
        """Each flag as it is typed, by the path of its field."""
        return {flag.path: self.flag_name(name) for name, flag in self.items() if flag.path}

    def flag_at(self, location: Sequence[int | str]) -> str:
        """The flag for pydantic's location of an error, or for the nearest field around it; else the location itself.

        After the field of a union, a location names the member, which has no flag.
        """
        unions = {name for name, field in self.model.model_fields.items() if field.discriminator}
        names = [name for parent, name in zip(("", *location), location, strict=False) if parent not in unions]
        return _nearest_flag(names, self.by_path)

    def parameters(self) -> list[inspect.Parameter]:
        """The options as parameters of a function that typer reads."""
        return [self._parameter(name, flag) for name, flag in self.items()]

    def _parameter(self, name: str, flag: Flag) -> inspect.Parameter:
        kind, default, (minimum, maximum) = flag.kind, None, flag.limits or (None, None)
        if flag.path:
            fields = list(fields_at(self.model, flag.path))
            kind = kind or (_plain_type(fields) if flag.switch is None else bool)
            default = fields[0].default
            minimum = _minimum(fields[0]) if kind is int and flag.limits is None else minimum
        option = typer.Option(
            flag.name or self.flag_name(name),
            help=flag.help.replace("{default}", str(default)),
            metavar=flag.metavar,
            min=minimum,
            max=maximum,
            rich_help_panel=flag.section,
        )
        return keyword(name, Annotated[kind | None, option], default if flag.show_default else None)


@dataclass(frozen=True)
class ParsedFlags:
    """The values of a command's flags in one run, by the names of the flags; None and [] are those of absent flags."""

    flags: Flags
    values: Mapping[str, Any]

    def __contains__(self, name: str) -> bool:
        return self.values.get(name) not in (None, [])

    def __getitem__(self, name: str) -> Any:
        return self.values.get(name)

    def present(self, *names: str) -> list[str]:
        """The flags among `names` that have a value, as they are typed."""
        return [self.flags.flag_name(name) for name in names if name in self]

    def nested(self) -> dict[str, Any]:
        """The values for the model: nested dicts by the names of its fields.

        Raises BadParameter for an option whose list is empty.
        """
        values: dict[str, Any] = {}
        for name, flag in self.flags.items():
            if name in self and flag.path:
                *parents, last = flag.path.split(".")
                target = values
                for parent in parents:
                    target = target.setdefault(parent, {})
                target[last] = flag.switch or (flag.parse(self[name]) if flag.parse else self[name])
                if target[last] == []:
                    raise typer.BadParameter(f"{self.flags.flag_name(name)} is empty: leave it out, or give a value.")
        return values


def keyword(name: str, annotation: Any, default: Any = inspect.Parameter.empty) -> inspect.Parameter:
    """A keyword-only parameter."""
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default)


def fields_at(model: type[BaseModel], path: str) -> Iterator[FieldInfo]:
    """The fields at a path of a model: several if members of a union have a field of this name each."""
    first, _, rest = path.partition(".")
    field = model.model_fields.get(first)
    if field is not None and not rest:
        yield field
    elif field is not None:
        for inner in _models(field.annotation):
            yield from fields_at(inner, rest)


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    """The pydantic models in an annotation, those of a union in its order."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from _models(inner)


def _plain_type(fields: Sequence[FieldInfo]) -> Any:
    """The type that typer reads for fields of one name: without None and constraints, with all their literals."""
    types = [_without_wrappers(field.annotation) for field in fields]
    if get_origin(types[0]) is Literal:
        return Literal[tuple(dict.fromkeys(value for literal in types for value in get_args(literal)))]
    return types[0]


def _without_wrappers(annotation: Any) -> Any:
    """An annotation without Annotated, and without the None of a union; a list for a tuple."""
    if get_origin(annotation) in (Union, UnionType):
        return _without_wrappers(next(member for member in get_args(annotation) if member is not NoneType))
    if get_origin(annotation) is Annotated:
        return _without_wrappers(get_args(annotation)[0])
    return (
        GenericAlias(list, _without_wrappers(get_args(annotation)[0]))
        if get_origin(annotation) is tuple
        else annotation
    )


def _minimum(field: FieldInfo) -> int | None:
    """The smallest integer that a field accepts, None without a constraint."""
    return next((constraint.ge for constraint in field.metadata if hasattr(constraint, "ge")), None)


def base_id(value: str | None) -> str | None:
    """The id of a base model, which may be typed as `base/<id>` too."""
    return None if value is None else value.removeprefix("base/")


def nonempty_path(text: str) -> Path:
    """The path of an option or argument; raises BadParameter for an empty one."""
    if not text:
        raise typer.BadParameter("The path is empty. For the current folder write a dot.")
    return Path(text)


def number_or_default(text: str) -> int:
    """A number for a limit of the server; `default`, as -1, for that of its settings. Raises BadParameter."""
    if text == "default":
        return -1
    if not (text.isascii() and text.isdecimal() and len(text) < 20):
        raise typer.BadParameter(f"'{text[:40]}' is neither 'default' nor a number of at most 19 digits.")
    return int(text)


def key_values(pairs: Sequence[str], option: str) -> dict[str, str | int | float | bool | None]:
    """`k=v` options as a dict: JSON numbers, true, false and null are parsed, other values are text.

    Raises BadParameter.
    """
    values: dict[str, str | int | float | bool | None] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise typer.BadParameter(f"{option} takes key=value, not {pair!r}.")
        values[name] = _scalar(value)
    return values


def _scalar(text: str) -> str | int | float | bool | None:
    try:
        value = json.loads(text, parse_constant=str)
    except (ValueError, RecursionError):
        return text
    return text if isinstance(value, str | list | dict) or value in (inf, -inf) else value


def usage_error(error: ValidationError, flags_by_path: Mapping[str, str] = {}) -> typer.BadParameter:
    """A usage error for the first invalid value, which names its flag, or that of the nearest field around it."""
    details = error.errors(include_url=False)[0]
    flag = _nearest_flag([name for name in details["loc"] if name not in _MEMBERS], flags_by_path)
    return typer.BadParameter(f"{flag}: {describe_error(details)}.")


def _nearest_flag(path: Sequence[int | str], flags_by_path: Mapping[str, str]) -> str:
    """The flag for a path of fields, or for the nearest field around it; else the path itself."""
    paths = [".".join(map(str, path[:end])) for end in range(len(path), 0, -1)] or [""]
    return next((flags_by_path[path] for path in paths if path in flags_by_path), paths[0])


def moment(text: str) -> datetime:
    """The datetime of an ISO date, with or without a time, in UTC unless it has an offset; raises BadParameter."""
    try:
        parsed = datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(f"'{text}' is not a date such as 2030-01-31 or 2030-01-31T12:00:00Z.") from None
    return parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)
