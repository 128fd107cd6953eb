"""`soup embed`: vectors of texts, by the base model that samples are embedded with."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from service.cli.output import as_json, data, progress_bar
from service.cli.remote import SAMPLE_FORMS, Remote, verb
from service.client.samples import read_texts


@verb
def embed(
    remote: Remote,
    model: Annotated[str, typer.Argument(help="A base model: base/<id>.", metavar="BASE")],
    text: Annotated[str | None, typer.Argument(help="Text to embed; - reads it from stdin.", metavar="[TEXT]")] = None,
    texts: Annotated[Path | None, typer.Option(help=f"Several instead: {SAMPLE_FORMS}")] = None,
) -> None:
    """Embed texts as samples are.

    A vector is the mean of the base model's last hidden states; each is a line of JSON.

    \b
    Examples:
      soup embed base/small "The court held that"
      soup embed base/small --texts passages.jsonl > vectors.jsonl
    """
    if (text is None) == (texts is None):
        raise typer.BadParameter("Give TEXT, or --texts FILE.")
    given = [sys.stdin.read() if text == "-" else str(text)] if texts is None else read_texts(texts)
    with progress_bar("embedding"):
        answer = remote.client.embed(model, given)
    if remote.json:
        as_json(answer)
        return
    for one in answer["data"]:
        data(json.dumps(one["embedding"]))
