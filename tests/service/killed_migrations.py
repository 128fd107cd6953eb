"""Runs `soup migrate` again and again, and kills it (kill -9) a little later each time; started by its test.

Arguments: the data folder, and how many statements further each kill comes. The first kill comes as the copy of a
SQLite file is made, one as the transaction is to be committed. A line on standard output tells of each kill, and the
next run waits for one on standard input. A run that is not killed ends it.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from sqlalchemy import Engine, event

import service.settings  # noqa: F401
from adaptersoup.cli import app
from service.operations import storage


def kill(*_: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def at_statement(number: int) -> None:
    """Be killed before this statement."""
    statements = iter(range(number))

    def count(*_: Any) -> None:
        if next(statements, None) is None:
            kill()

    event.listen(Engine, "before_cursor_execute", count)


def run(folder: str, moment: int | str) -> int:
    """The status of a `soup migrate` that is killed at a moment."""
    child = os.fork()
    if child == 0:
        if moment == "copy":
            storage.sync_file = kill  # type: ignore[assignment]
        elif moment == "commit":
            event.listen(Engine, "commit", kill)
        else:
            at_statement(int(moment))
        os._exit(app.run(["migrate", "--data", folder]))
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


def main(folder: str, step: int) -> None:
    moments: list[int | str] = ["commit", *range(0, 10_000, step)]
    if os.environ["SOUP_DATABASE_URL"].startswith("sqlite"):
        moments.insert(0, "copy")
    for moment in moments:
        status = run(folder, moment)
        if status == -signal.SIGKILL:
            sys.stdout.write(f"killed at {moment}\n")
            sys.stdout.flush()
            sys.stdin.readline()
        else:
            sys.exit(status)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
