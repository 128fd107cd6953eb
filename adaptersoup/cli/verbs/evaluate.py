"""`soup evaluate`: evaluates a trained adapter on a task's data, without a server.

Torch is imported when the evaluation begins, not for the help.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from adaptersoup.cli.base_model_flags import BaseModelOptions
from adaptersoup.cli.commands import command
from adaptersoup.cli.output import answer
from adaptersoup.cli.plot_flag import PlotOption, save_plot
from adaptersoup.tables import fields
from registry.errors import NotFound
from training.spec import TaskKey


@dataclass(frozen=True)
class EvaluationFlags:
    """The options for the task, the length of sequences and the batch."""

    task: Annotated[TaskKey | None, typer.Option(help="Task; by default the adapter's, or language_modelling.")] = None
    block: Annotated[
        int | None, typer.Option(min=2, help="Maximum number of tokens of a sequence; by default the context.")
    ] = None
    batch: Annotated[int, typer.Option(min=1, help="Sequences per forward pass.")] = 8


@command
def evaluate(
    folder: Annotated[Path, typer.Argument(help="Adapter directory, as `soup train` writes it.", metavar="DIR")],
    items: Annotated[Path, typer.Option("--data", help="JSON lines (.jsonl, .jsonl.gz) of the task.")],
    base: Annotated[BaseModelOptions, ("base_folder", "bases", "base", "base_kind")],
    options: EvaluationFlags,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
    plot: PlotOption = None,
) -> None:
    """Evaluate a trained adapter on data of its task.

    \b
    Tasks, with the fields of their data and their figures:
      language_modelling   {"text"}
          perplexity of adapter and base model, paired difference
      classification       {"text", "label"}, for pairs also "pair"
          accuracy, Matthews' correlation, macro F1
      question_answering   {"question", "context", "answers"}
          SQuAD's exact match and F1
      summarisation        {"text", "summary"}
          ROUGE of greedy summaries, loss of the given ones

    Rates are fractions, losses are in nats. An adapter can leave a question unanswered only if its training data did.

    \b
    Examples:
      soup evaluate adapters/law --data law-test.jsonl --base-folder models/gpt2
      soup evaluate adapters/reviews --data reviews-test.jsonl --bases bases.toml --base minilm --json
      soup evaluate adapters/law --data law-test.jsonl --base-folder models/gpt2 --plot law.svg
    """
    if not items.is_file():
        raise NotFound(f"{items} is not a file: --data names JSON lines of the task.", param="data")
    entry = base.entry()
    from registry.base_model import load_base
    from registry.formats import read_directory
    from training.data import read_lines
    from training.evaluate import adapter_of, evaluate_task, task_of

    directory = read_directory(folder)
    task = task_of(directory, options.task)
    examples = task.items(read_lines(items), where=str(items))
    loaded = load_base(entry)
    adapter = adapter_of(directory, loaded)
    figures = evaluate_task(loaded, adapter, task, examples, block=options.block, batch=options.batch)
    table = fields([(figure.replace("_", " "), f"{value:.6g}") for figure, value in figures.items()])
    value = {"object": "evaluation", "path": str(folder), "task": task.name, "figures": figures}
    answer(value, table, json=as_json, note=f"{task.name} on {items}")
    if plot is not None:
        from plots.results import evaluation_plot

        save_plot(plot, lambda: evaluation_plot(f"{folder.resolve().name}: {task.name}", figures))
