"""`soup train`: one adapter on this machine; below it a grid of them, and a training on a server."""

import typer

from adaptersoup.cli.verbs.train.command import train
from adaptersoup.cli.verbs.train.submit import submit
from adaptersoup.cli.verbs.train.sweep import sweep

app = typer.Typer(rich_markup_mode=None, add_completion=False)
app.callback(invoke_without_command=True)(train)
app.command("sweep")(sweep)
app.command("submit")(submit)
