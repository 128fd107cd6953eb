"""Sends adapters in parallel, with one progress bar for all of their bytes. Called by `soup push`."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

from pydantic import ValidationError

from adaptersoup.cli.flags import usage_error
from adaptersoup.cli.output import progress_bar
from adaptersoup.cli.verbs.push.outcomes import Outcome
from adaptersoup.cli.verbs.push.sources import Source, cannot_be_read
from adaptersoup.client import SoupClient
from adaptersoup.client.additions import Additions
from adaptersoup.client.transfer import Pushed, send_folder
from registry.errors import Cancelled, InvalidManifest, SoupError
from registry.progress import Progress

AT_ONCE = 4
"""Default number of adapters sent in parallel."""
_NAMES = {"tags": "--tag", "metadata": "--metadata", "domain": "--domain", "base_model": "--base", "owner": "--owner"}


def send_all(client: SoupClient, outcomes: Sequence[Outcome], *, at_once: int, is_batch: bool, anew: bool) -> None:
    """Push every source that was read, and set its outcome.

    In a batch, adapters that the server has are not sent again, unless `anew`, and a refused adapter does not stop the
    others. Raises a usage error for invalid flags.

    If the command is interrupted, no further push starts, running ones end at their next report, and the outcomes are
    set as far as they are known.
    """
    has_distinct_names = len({outcome.source.name for outcome in outcomes}) == len(outcomes)
    readable = [outcome for outcome in outcomes if outcome.source.directory is not None]
    with progress_bar("pushing", in_bytes=True) as report:
        progress = _BatchProgress(report, [outcome.source for outcome in readable])
        with ThreadPoolExecutor(at_once if has_distinct_names else 1) as pool:  # else versions would be in any order
            futures = [
                pool.submit(_push, client, outcome.source, partial(progress.report, number), is_batch, anew)
                for number, outcome in enumerate(readable)
            ]
            try:
                for number, (outcome, future) in enumerate(zip(readable, futures, strict=True)):
                    _set_outcome(outcome, future, is_batch)
                    if outcome.adapter is not None:
                        progress.report(number, outcome.source.size, 0, "")
            finally:
                progress.is_over = True
                pool.shutdown(cancel_futures=True)
                for outcome, future in zip(readable, futures, strict=True):
                    if outcome.state == "not sent" and future.done() and not future.cancelled():
                        _set_outcome(outcome, future, is_batch=True)


def _push(client: SoupClient, source: Source, progress: Progress, is_batch: bool, anew: bool) -> Pushed:
    assert source.directory is not None
    additions = Additions(**{**vars(source.additions), "texts": source.texts()})
    if is_batch:
        return send_folder(client, source.directory, name=source.name, more=additions, progress=progress, anew=anew)
    adapter = client.push_directory(source.directory, name=source.name, more=additions, progress=progress, anew=anew)
    return Pushed(adapter, "pushed")


def _set_outcome(outcome: Outcome, future: Future[Pushed], is_batch: bool) -> None:
    """Set the outcome of a push that has ended; it stays `not sent` if the command was interrupted meanwhile."""
    try:
        pushed = future.result()
    except Cancelled:
        return
    except SoupError as error:
        outcome.error, outcome.state = error, "refused"
    except ValidationError as error:
        if not is_batch:
            raise usage_error(error, _NAMES) from None
        outcome.error, outcome.state = InvalidManifest(usage_error(error).message, param="manifest"), "refused"
    except OSError as error:
        outcome.error, outcome.state = cannot_be_read(outcome.source.path, error), "refused"
    else:
        outcome.adapter, outcome.state = pushed.adapter, pushed.status


class _BatchProgress:
    """The bytes sent of all sources, on one progress bar; several threads report to it."""

    def __init__(self, bar: Progress, sources: Sequence[Source]) -> None:
        self._bar = bar
        self._names = [source.name for source in sources]
        self._sizes = [source.size for source in sources]
        self._done = [0] * len(sources)
        self._lock = threading.Lock()
        self.is_over = False
        """Set when the command ends; later reports raise Cancelled."""

    def report(self, number: int, done: int, _: int, file: str) -> None:
        """Report the bytes sent of a source's file; raises Cancelled once the command has ended."""
        if self.is_over:
            raise Cancelled("The command was interrupted.")
        with self._lock:
            self._done[number] = max(self._done[number], min(done, self._sizes[number]))
            self._bar(sum(self._done), sum(self._sizes), f"{self._names[number]} {file}")
