"""`soup models`, `generate`, `embed` and `ppl`: the models of a server, and text, vectors and perplexity from them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal

import typer

from adaptersoup.cli.output import as_json, data, progress_bar, write
from adaptersoup.cli.plot_flag import PlotOption, save_plot
from adaptersoup.cli.remote import SAMPLE_FORMS, ModelArgument, PromptedModel, Remote, verb
from adaptersoup.cli.sampling_flags import SamplingFlags
from adaptersoup.client.samples import read_text, read_texts
from adaptersoup.tables import fields, one_line
from adaptersoup.values import Perplexity
from registry.errors import Unavailable
from registry.spec import full_text
from service.http.schemas.reading import body_of


@verb
def models(
    remote: Remote,
    kind: Annotated[
        Literal["base", "adapter", "soup"] | None, typer.Option("--kind", help="Only models of this kind.")
    ] = None,
    owner: Annotated[str | None, typer.Option(help="Only this owner.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only names.")] = False,
) -> None:
    """List the models that generate text.

    Lists base models first, then adapters and soups, newest first. A name appears once, and means its newest version.
    `soup ls` lists all versions, and adapters that do not generate text.

    \b
    Examples:
      soup models
      soup models --kind base
      soup generate "$(soup models --kind soup --quiet | head -n 1)" "Once"
    """
    cards = remote.client.models()
    if any("kind" not in card for card in cards):
        raise Unavailable("The server lists models without their kind: is it an AdapterSoup server?")
    cards = [card for card in cards if kind in (None, card["kind"]) and owner in (None, card.get("owner"))]
    if quiet and not remote.json:
        for card in cards:
            data(one_line(card["id"]))
        return
    rows = [
        (card["id"], card["kind"], card["base_model"], "yes" if card["speaks"] else "no", card.get("max_model_len"))
        for card in cards
    ]
    remote.answer_rows(cards, ("model", "kind", "base", "generates", "context"), rows)


@verb
def generate(
    remote: Remote,
    model: PromptedModel,
    prompt: Annotated[str, typer.Argument(help="Text to continue; - reads it from stdin.", metavar="PROMPT")],
    max_tokens: Annotated[int, typer.Option(min=1, help="Maximum number of tokens.")] = 64,
    *,
    sampling: SamplingFlags,
    stream: Annotated[bool, typer.Option("--stream", help="Print text as it is generated.")] = False,
) -> None:
    """Continue a prompt.

    \b
    Examples:
      soup generate team/law "The court held that" --max-tokens 40
      soup generate base/small "Once" --temperature 0 --stream
      cat prompt.txt | soup generate team/soup -
    """
    text = read_text(Path("-")) if prompt == "-" else prompt
    options = {"max_tokens": max_tokens, **sampling.fields()}
    if stream:
        with remote.client.stream(model, text, **options) as chunks:
            for chunk in chunks:
                if remote.json:
                    as_json(chunk, lines=True)
                else:
                    write("".join(choice["text"] for choice in chunk.get("choices") or ()))
        if not remote.json:
            data("")
        return
    with progress_bar("generating"):
        answer = remote.client.complete(model, text, **options)
    remote.answer(answer, answer["choices"][0]["text"])


@verb
def embed(
    remote: Remote,
    model: Annotated[str, typer.Argument(help="Model; base/<id> embeds as the samples are embedded.", metavar="MODEL")],
    text: Annotated[str | None, typer.Argument(help="Text to embed; - reads it from stdin.", metavar="[TEXT]")] = None,
    texts: Annotated[Path | None, typer.Option(help=f"Several texts instead: {SAMPLE_FORMS}")] = None,
) -> None:
    """Embed texts with a model.

    Prints a vector per line as JSON: the mean of the model's last hidden states.

    \b
    Examples:
      soup embed base/small "The court held that"
      soup embed base/small --texts passages.jsonl > vectors.jsonl
    """
    if (text is None) == (texts is None):
        raise typer.BadParameter("Give TEXT, or --texts FILE.")
    if texts is None:
        contents = [read_text(Path("-")) if text == "-" else str(text)]
    else:
        contents = [full_text(passage) for passage in read_texts(texts)]
    with progress_bar("embedding"):
        answer = remote.client.embed(model, contents)
    remote.answer(answer, *(json.dumps(row["embedding"]) for row in answer["data"]))


@verb
def ppl(
    remote: Remote,
    model: ModelArgument,
    texts: Annotated[Path, typer.Option(help=SAMPLE_FORMS)],
    baseline: Annotated[str | None, typer.Option(help="Model to compare with, such as base/small.")] = None,
    plot: PlotOption = None,
) -> None:
    """Compute the perplexity of texts under a model.

    \b
    Examples:
      soup ppl team/law --texts contracts.jsonl
      soup ppl team/soup --texts contracts.jsonl --baseline base/small
    """
    with progress_bar("scoring"):
        answer = remote.client.perplexity(model, read_texts(texts), baseline=baseline)
    comparison = answer.get("baseline") or {}
    remote.answer(
        answer,
        fields(
            [
                ("perplexity", answer["perplexity"]),
                ("mean NLL per token", f"{answer['mean_nll']:.4f} (standard error {answer['standard_error']:.4f})"),
                ("bits per byte", f"{answer['bits_per_byte']:.4f}"),
                ("tokens", f"{answer['tokens']} in {len(answer['texts'])} texts"),
                ("baseline", baseline),
                ("its perplexity", comparison.get("perplexity")),
                (
                    "difference",
                    f"{comparison['difference']:+.4f} (paired standard error {comparison['standard_error']:.4f})"
                    if comparison
                    else None,
                ),
            ]
        ),
    )
    save_plot(plot, lambda: body_of(Perplexity, answer).plot())
