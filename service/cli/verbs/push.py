"""`soup push`: adapter directories to the server. All are read and checked here before the first is sent."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError

from registry.errors import Cancelled
from registry.formats import AdapterDirectory, read_directory
from registry.names import split_name
from registry.progress import Progress
from service.cli.failures import Failures
from service.cli.flags import base_id, key_values, usage_error
from service.cli.hub_sources import local_folders
from service.cli.output import progress_bar, talk
from service.cli.remote import Remote, verb
from service.client import SoupClient
from service.client.samples import read_texts
from service.client.transfer import name_of, push_folder
from training.spec import BANK

AT_ONCE = 4
"""Adapters that are sent at the same time."""
_NAMES = {"tags": "--tag", "metadata": "--metadata", "domain": "--domain", "base_model": "--base"}


@dataclass(frozen=True)
class Additions:
    """What the flags say of the adapters, in the place of their directories or beside it."""

    domain: Annotated[str | None, typer.Option(help="Domain label, instead of the folder's.")] = None
    base: Annotated[
        str | None,
        typer.Option(callback=base_id, help="Base model on the server, instead of the one the folders name."),
    ] = None
    sample: Annotated[Path | None, typer.Option(help="Sample file, instead of the folder's.")] = None
    tag: Annotated[list[str] | None, typer.Option(help="A tag to add; may be repeated.")] = None
    metadata: Annotated[list[str] | None, typer.Option(help="A field to add; may be repeated.", metavar="K=V")] = None

    def arguments(self) -> dict[str, Any]:
        """The same as arguments of `push_folder`. Raises a usage error, NotFound or InvalidSample."""
        return {
            "domain": self.domain,
            "base": self.base,
            "texts": None if self.sample is None else read_texts(self.sample),
            "tags": self.tag or (),
            "metadata": key_values(self.metadata or (), "--metadata"),
        }


@verb
def push(
    remote: Remote,
    folders: Annotated[
        list[Path],
        typer.Argument(
            help="Adapter directories, those of PEFT as they are; hub:OWNER/NAME[@REVISION] is downloaded first.",
            metavar="FOLDER",
        ),
    ],
    name: Annotated[str | None, typer.Option("--name", help="namespace/name; with one folder only.")] = None,
    namespace: Annotated[
        str, typer.Option(help="Namespace of adapters that are named after their folder.")
    ] = "default",
    *,
    more: Additions,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until the samples are embedded.")] = False,
) -> None:
    """Push adapter directories.

    Prints the name and version each is known by; pushing the same again changes nothing.

    \b
    Examples:
      soup push adapters/law --name team/law --wait
      soup push adapters/* --namespace team --tag v2 --metadata trained_by=ana
      soup push adapters/law --name team/law --sample passages.jsonl
      soup push peft-folder --name team/law --domain law --sample law.jsonl --base small
      soup push hub:someone/law-lora@v2 --name team/law --domain law
    """
    if len(folders) > 1 and (name or more.sample or more.domain):
        raise typer.BadParameter(
            "--name, --domain and --sample go with one folder: push one at a time, or use --namespace for several, "
            "each with its own domain and sample in it."
        )
    failed = Failures()
    with local_folders(folders) as local:
        named = [(read_directory(path), _checked(name or f"{namespace}/{name_of(path)}")) for path in local]
        pushed = _push_all(remote.client, named, more.arguments(), failed)
    if wait:
        pushed = _wait_all(remote.client, pushed, failed)
    answer = pushed[0] if len(folders) == 1 and pushed else {"object": "list", "data": pushed}
    remote.answer(answer, *(adapter["ref"] for adapter in pushed))
    failed.end()


def _push_all(
    client: SoupClient, named: Sequence[tuple[AdapterDirectory, str]], more: dict[str, Any], failed: Failures
) -> list[dict[str, Any]]:
    """Push every folder, some at once, and give them in their order; raises a usage error for flags that do not fit."""
    distinct = len({name for _, name in named}) == len(named)  # else their versions would be in any order
    pushed = []
    with progress_bar("pushing", in_bytes=True) as report:
        sent = _Sent(report, [(name, folder.weights.stat().st_size) for folder, name in named])
        with ThreadPoolExecutor(AT_ONCE if distinct else 1) as pool:
            asked = [
                pool.submit(push_folder, client, folder, name=name, progress=sent.of(number), **more)
                for number, (folder, name) in enumerate(named)
            ]
            try:
                for number, ((folder, _), future) in enumerate(zip(named, asked, strict=True)):
                    with failed.of(folder.path):
                        pushed.append(future.result())
                        sent.all_of(number)
                        _comment(pushed[-1])
            except ValidationError as error:
                raise usage_error(error, _NAMES) from None
            finally:  # where it ends early nothing more is begun, and what is being sent ends at its next report
                sent.over = True
                pool.shutdown(cancel_futures=True)
    return pushed


class _Sent:
    """How much of all files is sent, on one bar; threads report to it."""

    def __init__(self, report: Progress, files: Sequence[tuple[str, int]]) -> None:
        self._report = report
        self._files = files
        self._done = [0] * len(files)
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


def _comment(adapter: dict[str, Any]) -> None:
    for warning in adapter.get("warnings") or ():
        talk(f"{adapter['ref']}: {warning}")
    if (adapter.get("config") or {}).get("method") == "adamix":
        name = adapter["ref"].partition("@")[0]
        merge = name.removesuffix(BANK) if name.endswith(BANK) else f"{name}-merge"
        made = f"`soup cook --recipe {adapter['ref']} --name {merge}`"
        talk(f"{adapter['ref']}: a bank is only stored; {made} makes the merge to use.")
    elif adapter.get("sample_state") == "none":
        talk(f"{adapter['ref']}: no sample, so it can be used but not selected; push it again with --sample.")


def _wait_all(client: SoupClient, pushed: Sequence[dict[str, Any]], failed: Failures) -> list[dict[str, Any]]:
    """The adapters once their samples are embedded; one whose sample could not be stays as it was pushed."""
    found = list(pushed)
    for number, adapter in enumerate(pushed):
        if adapter.get("job"):
            with failed.of(adapter["ref"]):
                with progress_bar(f"embedding {adapter['ref']}") as report:
                    client.wait_job(adapter["job"], progress=report)
                found[number] = {**adapter, **client.adapter(adapter["ref"])}
    return found


def _checked(name: str) -> str:
    split_name(name)
    return name
