"""Options that are derived from the fields of values, and commands that spread their arguments over them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args

import pytest
import typer
from pydantic import Field
from typer.main import get_command
from typer.testing import CliRunner

from adaptersoup.cli.commands import command
from adaptersoup.cli.flags import Flag, Flags, ParsedFlags
from registry.spec import Frozen


class Square(Frozen):
    kind: Literal["square"] = "square"
    side: int = Field(default=2, ge=1, le=9)


class Circle(Frozen):
    kind: Literal["circle"] = "circle"
    radius: float | None = Field(default=None, ge=0)
    names: tuple[str, ...] = ()


class Drawing(Frozen):
    shape: Annotated[Square | Circle, Field(discriminator="kind")] = Square()
    seed: int = Field(default=7, ge=0)
    mode: Literal["plain", "fine"] = "plain"
    kept: bool = True


FLAGS = Flags(
    Drawing,
    {
        "kind": Flag("shape.kind", "Which; by default {default}."),
        "side_length": Flag("shape.side", "How long."),
        "radius": Flag("shape.radius", "How far."),
        "names": Flag("shape.names", "Of it.", parse=lambda names: [name.upper() for name in names]),
        "seed": Flag("seed", "Chance.", "--chance", limits=(1, 8)),
        "fine": Flag("mode", "Fine.", switch="fine"),
        "keep": Flag("kept", "Keep it.", "--keep/--drop", show_default=True),
        "word": Flag("", "Of no field.", kind=str),
    },
)


def option(name: str) -> tuple[Any, Any, inspect.Parameter]:
    """(type without None, typer's option, parameter) of a flag."""
    (parameter,) = FLAGS.only(name).parameters()
    kind, about = get_args(parameter.annotation)
    return get_args(kind)[0], about, parameter


@pytest.mark.parametrize(
    ("name", "kind", "least", "most", "typed"),
    [
        ("kind", Literal["square", "circle"], None, None, "--kind"),
        ("side_length", int, 1, None, "--side-length"),
        ("radius", float, None, None, "--radius"),
        ("names", list[str], None, None, "--names"),
        ("seed", int, 1, 8, "--chance"),
        ("fine", bool, None, None, "--fine"),
        ("keep", bool, None, None, "--keep"),
        ("word", str, None, None, "--word"),
    ],
)
def test_an_option_is_what_its_field_is(name: str, kind: Any, least: Any, most: Any, typed: str) -> None:
    found, about, parameter = option(name)
    assert found == kind
    assert (about.min, about.max, FLAGS.flag_name(name)) == (least, most, typed)
    assert parameter.default is (True if name == "keep" else None)


def test_the_default_stands_in_the_help() -> None:
    assert option("kind")[1].help == "Which; by default square."


def test_only_what_was_given_is_in_the_value() -> None:
    flags = ParsedFlags(
        FLAGS, {"kind": "circle", "radius": 0.0, "names": ["a"], "seed": None, "fine": True, "word": "x"}
    )
    assert flags.nested() == {"shape": {"kind": "circle", "radius": 0.0, "names": ["A"]}, "mode": "fine"}
    assert flags.present("seed", "fine", "radius", "word") == ["--fine", "--radius", "--word"]
    assert ParsedFlags(FLAGS, {"names": []}).nested() == {}


@pytest.mark.parametrize(
    ("place", "typed"),
    [
        (("shape", "square", "side"), "--side-length"),
        (("shape", "circle", "names", 0), "--names"),
        (("seed",), "--chance"),
        (("shape", "square", "new"), "shape.new"),
        ((), ""),
    ],
)
def test_a_place_in_the_value_is_told_by_its_flag(place: tuple[str | int, ...], typed: str) -> None:
    assert FLAGS.flag_at(place) == typed


@dataclass(frozen=True)
class Pen:
    ink: Annotated[str, typer.Option("--ink")]
    width: Annotated[int, typer.Option("--width")] = 3


def told(function: Callable[..., None], *args: str) -> str:
    app = typer.Typer()
    app.command()(command(function))
    return CliRunner().invoke(app, list(args), catch_exceptions=False).output


def test_an_argument_stands_for_its_options() -> None:
    def draw(
        name: str, pen: Pen, flags: Annotated[ParsedFlags, FLAGS.only("seed", "fine")], loud: bool = False
    ) -> None:
        """Draw it."""
        typer.echo(f"{name} {pen} {flags.nested()} {loud}")

    assert told(draw, "--ink", "red", "it") == "it Pen(ink='red', width=3) {} False\n"
    assert told(draw, "it", "--width", "5", "--ink", "red", "--chance", "4", "--loud").endswith("{'seed': 4} True\n")
    app = typer.Typer()
    app.command()(command(draw))
    drawn = get_command(app)
    assert [one.name for one in drawn.params[:6]] == ["name", "ink", "width", "seed", "fine", "loud"]
    assert drawn.help == "Draw it."


def test_options_in_another_order() -> None:
    def draw(pen: Annotated[Pen, ("width", "ink")]) -> None:
        """Draw it."""

    assert list(inspect.signature(command(draw)).parameters) == ["width", "ink"]
