"""`soup compare`: every strategy cooks for samples of domains, and all are scored on other text of theirs."""

from adaptersoup.cli.verbs.compare.command import compare

__all__ = ["compare"]
