"""Options made from the fields of a pydantic model: type, lowest value and default are the field's, the help is here.

`adaptersoup.cli.commands` puts them into a command; modules named `..._flags` have the tables. Never imports torch.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import typer
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from registry.spec import UNION_MEMBERS
from registry.spec.wording import said_of

_MEMBERS = UNION_MEMBERS["selector"] | UNION_MEMBERS["mixing"]
"""What is no field in a place; not the methods of adapters, of which one is a field's name too."""


@dataclass(frozen=True)
class Flag:
    """An option for the field at `path` of a model (`recipe.steps`), or for none where the path is empty.

    `{default}` in the help is the field's default. What is said here wins over the field: `name` is the flag as it is
    typed, `kind` the type, `limits` the least and the most; `parse` is applied to what was given. An option with
    `switch` takes no value and stands for this one. With `shown` the field's default is the option's too, and stands
    in the help; else an option that is not given leaves the field alone.
    """

    path: str
    help: str
    name: str | None = None
    kind: Any = None
    limits: tuple[int | None, int | None] | None = None
    parse: Callable[[Any], Any] | None = None
    switch: Any = None
    shown: bool = False
    metavar: str | None = None


class Flags(dict[str, Flag]):
    """Options for the fields of `model`, by the names of their parameters, in the order of the help."""

    def __init__(self, model: type[BaseModel], flags: Mapping[str, Flag]) -> None:
        super().__init__(flags)
        self.model = model

    def only(self, *names: str) -> Flags:
        """The flags of these names, in this order."""
        return Flags(self.model, {name: self[name] for name in names})

    def without(self, *names: str) -> Flags:
        """All flags but these."""
        return self.only(*(name for name in self if name not in names))

    def typed(self, name: str) -> str:
        """A flag as people type it."""
        return (self[name].name or "--" + name.replace("_", "-")).partition("/")[0]

    @property
    def by_path(self) -> dict[str, str]:
        """Each flag as people type it, by the path of its field."""
        return {flag.path: self.typed(name) for name, flag in self.items() if flag.path}

    def at(self, place: Sequence[int | str]) -> str:
        """The flag for a place in the model, or for what is around it; else the place itself.

        Behind the field of a union, pydantic's places name the member, which nobody typed.
        """
        unions = {name for name, field in self.model.model_fields.items() if field.discriminator}
        parts = [str(part) for before, part in zip(("", *place), place, strict=False) if before not in unions]
        around = (".".join(parts[:end]) for end in range(len(parts), 0, -1))
        return next((self.by_path[path] for path in around if path in self.by_path), ".".join(parts))

    def parameters(self) -> list[inspect.Parameter]:
        """The options as parameters of a function that typer reads."""
        return [self._parameter(name, flag) for name, flag in self.items()]

    def _parameter(self, name: str, flag: Flag) -> inspect.Parameter:
        kind, default, (least, most) = flag.kind, None, flag.limits or (None, None)
        if flag.path:
            fields = list(fields_at(self.model, flag.path))
            kind = kind or (_plain_type(fields) if flag.switch is None else bool)
            default = fields[0].default
            least = _least(fields[0]) if kind is int and flag.limits is None else least
        said = flag.help.replace("{default}", str(default))
        option = typer.Option(flag.name or self.typed(name), help=said, metavar=flag.metavar, min=least, max=most)
        return keyword(name, Annotated[kind | None, option], default if flag.shown else None)


@dataclass(frozen=True)
class Given:
    """What one run of a command was given, by the names of its flags; None and [] stand for what was not."""

    flags: Flags
    values: Mapping[str, Any]

    def __contains__(self, name: str) -> bool:
        return self.values.get(name) not in (None, [])

    def __getitem__(self, name: str) -> Any:
        return self.values.get(name)

    def typed(self, *names: str) -> list[str]:
        """Those of these flags that were given, as people type them."""
        return [self.flags.typed(name) for name in names if name in self]

    def nested(self) -> dict[str, Any]:
        """What was given as the model takes it: by the names of its fields, parts within parts."""
        found: dict[str, Any] = {}
        for name, flag in self.flags.items():
            if name in self and flag.path:
                *parents, last = flag.path.split(".")
                place = found
                for parent in parents:
                    place = place.setdefault(parent, {})
                place[last] = flag.switch or (flag.parse(self[name]) if flag.parse else self[name])
        return found


def keyword(name: str, annotation: Any, default: Any = inspect.Parameter.empty) -> inspect.Parameter:
    """A parameter that is given by its name."""
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default)


def fields_at(model: type[BaseModel], path: str) -> Iterator[FieldInfo]:
    """The fields at a path of a model: several where members of a union have one of this name each."""
    first, _, rest = path.partition(".")
    if first in model.model_fields:
        field = model.model_fields[first]
        yield from (found for part in _models(field.annotation) for found in fields_at(part, rest)) if rest else [field]


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    """The models in an annotation, those of a union in its order."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from _models(inner)


def _plain_type(fields: Sequence[FieldInfo]) -> Any:
    """What typer reads of the fields of one name: no None, no constraints, lists for tuples, all literals in one."""
    plain = [_bare(field.annotation) for field in fields]
    if get_origin(plain[0]) is Literal:
        return Literal[tuple(dict.fromkeys(value for one in plain for value in get_args(one)))]
    return plain[0]


def _bare(annotation: Any) -> Any:
    if get_origin(annotation) in (Union, UnionType):
        return _bare(next(part for part in get_args(annotation) if part is not NoneType))
    if get_origin(annotation) is Annotated:
        return _bare(get_args(annotation)[0])
    return list[_bare(get_args(annotation)[0])] if get_origin(annotation) is tuple else annotation  # type: ignore[misc]


def _least(field: FieldInfo) -> int | None:
    """The least whole number that a field takes."""
    return next((about.ge for about in field.metadata if hasattr(about, "ge")), None)


def base_id(given: str | None) -> str | None:
    """The id of a base model, which people may write as `base/<id>` too."""
    return None if given is None else given.removeprefix("base/")


def number_or_default(text: str) -> int:
    """A number of something that the server has a setting for; `default`, as -1, leaves it to that."""
    if text == "default":
        return -1
    if not (text.isascii() and text.isdecimal()):
        raise typer.BadParameter(f"'{text}' is no number, and not 'default'.")
    return int(text)


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
    """A value people gave that does not fit, as a usage error that names the field, or its flag by `names`."""
    found = error.errors(include_url=False)[0]
    field = ".".join(str(part) for part in found["loc"] if part not in _MEMBERS)
    return typer.BadParameter(f"{(names or {}).get(field, field)}: {said_of(found)}.")


def moment(text: str) -> datetime:
    """The moment of an ISO date, with a time or without, in UTC unless it says otherwise; raises BadParameter."""
    try:
        parsed = datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(f"'{text}' is no date (2030-01-31, 2030-01-31T12:00:00Z).") from None
    return parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)
