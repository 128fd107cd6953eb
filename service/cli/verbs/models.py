"""`soup models`: what may stand for MODEL, as OpenAI clients list it."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from service.cli.output import columns, data, data_width, one_line
from service.cli.remote import Remote, verb


@verb
def models(
    remote: Remote,
    kind: Annotated[Literal["base", "adapter", "soup"] | None, typer.Option("--kind", help="Only these.")] = None,
    owner: Annotated[str | None, typer.Option(help="Only of this owner: who answers for them.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Names only.")] = False,
) -> None:
    """List what generates text here.

    Base models first, then adapters and soups, newest first and each name once: its newest version answers. `soup ls`
    lists every version, and adapters that do not generate.

    \b
    Examples:
      soup models
      soup models --kind base
      soup generate "$(soup models --kind soup --quiet | head -n 1)" "Once"
    """
    found = [card for card in remote.client.models() if kind in (None, card["kind"])]
    found = [card for card in found if owner in (None, card.get("owner"))]
    if quiet and not remote.json:
        for card in found:
            data(one_line(card["id"]))
        return
    rows = [
        (card["id"], card["kind"], card["base_model"], "yes" if card["speaks"] else "no", card.get("max_model_len"))
        for card in found
    ]
    table = [columns(("model", "kind", "base", "generates", "context"), rows, within=data_width())] if rows else []
    remote.answer({"object": "list", "data": found}, *table, said="" if rows else "Nothing matches.")
