"""`soup limits`: the limits and quotas of keys and namespaces. Changing them needs a key with scope admin."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Annotated, Any, ClassVar

import typer

from adaptersoup.cli.flags import number_or_default
from adaptersoup.cli.help_sections import Verbs
from adaptersoup.cli.output import data_width
from adaptersoup.cli.remote import Remote, verb
from adaptersoup.client.answers import Json
from adaptersoup.tables import columns

app = Verbs(help="Show and change the limits of keys and namespaces.", no_args_is_help=True)


@dataclass(frozen=True)
class Subject:
    """The options that name a key or a namespace."""

    key_id: Annotated[str | None, typer.Option("--of-key", help="Limits of this key, by its id.", metavar="ID")] = None
    namespace: Annotated[str | None, typer.Option(help="Limits of this namespace.", metavar="NS")] = None


def _limit(help: str) -> Any:
    return typer.Option(parser=number_or_default, metavar="N|default", help=help)


@dataclass(frozen=True)
class LimitFlags:
    """The options for the limits, as keyword arguments of `SoupClient.change_limits`."""

    SECTION: ClassVar[str] = "Limits"
    requests_per_minute: Annotated[int | None, _limit("Inference requests per minute.")] = None
    tokens_per_minute: Annotated[int | None, _limit("Tokens read and written per minute.")] = None
    stored_bytes: Annotated[int | None, _limit("Bytes of blobs, weights, samples, embeddings and statistics.")] = None
    adapters: Annotated[int | None, _limit("Live versions of adapters and soups.")] = None
    jobs: Annotated[int | None, _limit("Waiting and running cooks, fits, evaluations and trainings.")] = None


@app.command()
@verb
def show(remote: Remote, subject: Subject) -> None:
    """Show the limits of a key or a namespace, and the used part of each.

    \b
    Examples:
      soup limits show --namespace team
      soup limits show --of-key key-1234
    """
    _answer(remote, remote.client.limits(**asdict(subject)))


@app.command(name="set")
@verb
def change(remote: Remote, subject: Subject, flags: LimitFlags) -> None:
    """Change limits of a key or a namespace.

    \b
    Examples:
      soup limits set --namespace team --tokens-per-minute 100000 --adapters 200
      soup limits set --of-key key-1234 --requests-per-minute default
    """
    limits = {name: None if value == -1 else value for name, value in asdict(flags).items() if value is not None}
    if not limits:
        raise typer.BadParameter("Name a limit to change, such as --jobs.")
    _answer(remote, remote.client.change_limits(**asdict(subject), **limits))


def _answer(remote: Remote, limits: Json) -> None:
    rows = [
        (
            name,
            "default" if value is None else value,
            "none" if limits["in_force"][name] is None else limits["in_force"][name],
            "-" if limits["in_use"].get(name) is None else limits["in_use"][name],
        )
        for name, value in limits["limits"].items()
    ]
    remote.answer(limits, columns(("limit", "set", "in force", "in use"), rows, within=data_width()))
