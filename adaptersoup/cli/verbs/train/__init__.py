"""`soup train`: trains one adapter on this machine; its subcommands train a grid of them, or on a server."""

from adaptersoup.cli.help_sections import Verbs
from adaptersoup.cli.verbs.train.command import train
from adaptersoup.cli.verbs.train.submit import submit
from adaptersoup.cli.verbs.train.sweep import sweep

app = Verbs()
app.callback(invoke_without_command=True)(train)
app.command("sweep")(sweep)
app.command("submit")(submit)
