"""`soup generate`: what a model says."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from service.cli.drawing_flags import Drawing
from service.cli.output import as_json, data, progress_bar, write
from service.cli.remote import ModelArgument, Remote, verb


@verb
def generate(
    remote: Remote,
    model: ModelArgument,
    prompt: Annotated[str, typer.Argument(help="Text to continue; - reads it from stdin.", metavar="PROMPT")],
    max_tokens: Annotated[int, typer.Option(min=1, help="Tokens to generate at most.")] = 64,
    *,
    drawing: Drawing,
    stream: Annotated[bool, typer.Option("--stream", help="Print text as it is generated.")] = False,
) -> None:
    """Continue a prompt.

    \b
    Examples:
      soup generate team/law "The court held that" --max-tokens 40
      soup generate base/small "Once" --temperature 0 --stream
      cat prompt.txt | soup generate team/soup -
    """
    text = sys.stdin.read() if prompt == "-" else prompt
    chosen = {"max_tokens": max_tokens, **drawing.sampling()}
    if stream:
        with remote.client.stream(model, text, **chosen) as chunks:
            for chunk in chunks:
                if remote.json:
                    as_json(chunk, lines=True)
                else:
                    write("".join(choice["text"] for choice in chunk.get("choices") or ()))
        if not remote.json:
            data("")
        return
    with progress_bar("generating"):
        answer = remote.client.complete(model, text, **chosen)
    remote.answer(answer, answer["choices"][0]["text"])
