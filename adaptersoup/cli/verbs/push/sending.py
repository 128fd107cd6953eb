"""Sends adapters, some at once, with one bar for all of their bytes. Called by `soup push`."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

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
"""Adapters that are sent at the same time, where nothing else is said."""
_NAMES = {"tags": "--tag", "metadata": "--metadata", "domain": "--domain", "base_model": "--base", "owner": "--owner"}


def send_all(client: SoupClient, outcomes: Sequence[Outcome], *, at_once: int, many: bool, anew: bool) -> None:
    """Push every source that was read, and note what becomes of it.

    Of `many` what the server has is not sent again, unless `anew`, and one that does not fit keeps no other; of the one
    that there is a usage error is raised for flags that do not fit.

    Where the command is ended nothing more is begun, what is being sent ends at its next report, and what had become of
    each stands in its outcome.
    """
    distinct = len({one.source.name for one in outcomes}) == len(outcomes)  # else their versions would be in any order
    waiting = [one for one in outcomes if one.source.read is not None]
    with progress_bar("pushing", in_bytes=True) as report:
        sent = _Sent(report, [one.source for one in waiting])
        with ThreadPoolExecutor(at_once if distinct else 1) as pool:
            asked = [pool.submit(_push, client, one.source, sent.of(i), many, anew) for i, one in enumerate(waiting)]
            try:
                for number, (one, future) in enumerate(zip(waiting, asked, strict=True)):
                    _note(one, future, many)
                    if one.adapter is not None:
                        sent.all_of(number)
            finally:
                sent.over = True
                pool.shutdown(cancel_futures=True)
                for one, future in zip(waiting, asked, strict=True):
                    if one.state == "not sent" and future.done() and not future.cancelled():
                        _note(one, future, many=True)


def _push(client: SoupClient, source: Source, progress: Progress, many: bool, anew: bool) -> Pushed:
    assert source.read is not None
    more = Additions(**{**vars(source.more), "texts": source.texts()})
    if many:
        return send_folder(client, source.read, name=source.name, more=more, progress=progress, anew=anew)
    adapter = client.push_directory(source.read, name=source.name, more=more, progress=progress, anew=anew)
    return Pushed(adapter, "pushed")


def _note(one: Outcome, future: Future[Pushed], many: bool) -> None:
    """What became of one; it stays as not sent where the command was ended meanwhile."""
    try:
        pushed = future.result()
    except Cancelled:
        return
    except SoupError as error:
        one.error, one.state = error, "refused"
    except ValidationError as error:
        if not many:
            raise usage_error(error, _NAMES) from None
        one.error, one.state = InvalidManifest(usage_error(error).message, param="manifest"), "refused"
    except OSError as error:
        one.error, one.state = cannot_be_read(one.source.path, error), "refused"
    else:
        one.adapter, one.state = pushed.adapter, pushed.status


class _Sent:
    """How much of all files is sent, on one bar; threads report to it."""

    def __init__(self, report: Progress, sources: Sequence[Source]) -> None:
        self._report = report
        self._files = [(source.name, source.size) for source in sources]
        self._done = [0] * len(sources)
        self._lock = threading.Lock()
        self.over = False
        """Set when the command ends: whoever reports after that is stopped."""

    def of(self, number: int) -> Progress:
        """Takes the bytes of one folder's files as they are sent; raises Cancelled once the command has ended."""
        name, size = self._files[number]
        place = f"{name} ({number + 1} of {len(self._files)})" if len(self._files) > 1 else name

        def sent(done: int, _: int, file: str) -> None:
            self._tell(number, min(done, size), f"{place}: {file}" if file else place)

        return sent

    def all_of(self, number: int) -> None:
        """A folder is pushed."""
        name, size = self._files[number]
        self._tell(number, size, f"{name} is there")

    def _tell(self, number: int, done: int, message: str) -> None:
        if self.over:
            raise Cancelled("The command was ended.")
        with self._lock:
            self._done[number] = max(self._done[number], done)
            self._report(sum(self._done), sum(size for _, size in self._files), message)
