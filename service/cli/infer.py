"""`soup generate` and `soup ppl`: what a model says, and how well it reads."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from service.cli.output import as_json, data, fields, progress_bar, write
from service.cli.session import Session, verb
from service.client.samples import read_texts

ModelArgument = Annotated[
    str, typer.Argument(help="base/<id>, namespace/name[@version or alias], or sha256:...", metavar="MODEL")
]


@verb
def generate(
    session: Session,
    model: ModelArgument,
    prompt: Annotated[str, typer.Argument(help="Text to continue; - reads it from stdin.", metavar="PROMPT")],
    max_tokens: Annotated[int, typer.Option("--max-tokens", min=1, help="Tokens to generate at most.")] = 64,
    temperature: Annotated[float, typer.Option("--temperature", min=0, help="0 always takes the likeliest.")] = 1.0,
    top_p: Annotated[float | None, typer.Option("--top-p", min=0, max=1, help="Nucleus sampling.")] = None,
    stop: Annotated[list[str] | None, typer.Option("--stop", help="Text to stop at; may be repeated.")] = None,
    seed: Annotated[int | None, typer.Option("--seed", help="The same seed, the same text.")] = None,
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
    sampling: dict[str, Any] = {
        "max_tokens": max_tokens, "temperature": temperature, "top_p": top_p, "stop": stop or None, "seed": seed,
    }  # fmt: skip
    if stream:
        for chunk in session.client.stream(model, text, **sampling):
            if session.json:
                as_json(chunk, lines=True)
            else:
                write("".join(choice["text"] for choice in chunk.get("choices") or ()))
        if not session.json:
            data("")
        return
    with progress_bar("generating"):
        answer = session.client.complete(model, text, **sampling)
    if session.json:
        as_json(answer)
    else:
        data(answer["choices"][0]["text"])


@verb
def ppl(
    session: Session,
    model: ModelArgument,
    texts: Annotated[
        Path, typer.Option("--texts", help='.jsonl(.gz) of {"text"}, .txt (a passage a paragraph), or - for stdin.')
    ],
    baseline: Annotated[str | None, typer.Option("--baseline", help="A model to compare with, such as base/x.")] = None,
) -> None:
    """Perplexity of texts under a model.

    \b
    Examples:
      soup ppl team/law --texts contracts.jsonl
      soup ppl team/soup --texts contracts.jsonl --baseline base/small
    """
    with progress_bar("scoring"):
        answer = session.client.perplexity(model, read_texts(texts), baseline=baseline)
    if session.json:
        as_json(answer)
        return
    against = answer.get("baseline") or {}
    data(fields([
        ("perplexity", answer["perplexity"]),
        ("mean NLL per token", f"{answer['mean_nll']:.4f} (standard error {answer['standard_error']:.4f})"),
        ("bits per byte", f"{answer['bits_per_byte']:.4f}"),
        ("tokens", f"{answer['tokens']} in {len(answer['texts'])} texts"),
        ("baseline", baseline),
        ("its perplexity", against.get("perplexity")),
        ("difference", f"{against['difference']:+.4f} (paired standard error {against['standard_error']:.4f})"
         if against else None),
    ]))  # fmt: skip
