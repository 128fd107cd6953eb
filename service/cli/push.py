"""`soup push`: adapter directories to the server. All are read and checked here before the first is sent."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError

from registry.errors import SoupError
from registry.formats import AdapterDirectory, read_directory
from registry.names import split_name
from service.cli.choosing import key_values, usage_error
from service.cli.failures import explain, worst_code
from service.cli.output import as_json, data, progress_bar, talk
from service.cli.session import Session, verb
from service.client.client import SoupClient
from service.client.samples import read_texts
from service.client.transfer import push_folder
from training.spec import BANK


@dataclass(frozen=True)
class _Plan:
    """What is pushed, as far as it is the same for every folder."""

    folders: list[tuple[AdapterDirectory, str]]
    extra: dict[str, Any]


@verb
def push(
    session: Session,
    folders: Annotated[
        list[Path], typer.Argument(help="Adapter directories, those of PEFT as they are.", metavar="FOLDER")
    ],
    name: Annotated[str | None, typer.Option("--name", help="namespace/name; with one folder only.")] = None,
    namespace: Annotated[
        str, typer.Option("--namespace", help="Namespace of adapters that are named after their folder.")
    ] = "default",
    domain: Annotated[str | None, typer.Option("--domain", help="Domain label, instead of the folder's.")] = None,
    base: Annotated[
        str | None, typer.Option("--base", help="Base model on the server, instead of the one the folders name.")
    ] = None,
    sample: Annotated[Path | None, typer.Option("--sample", help="Sample file, instead of the folder's.")] = None,
    tag: Annotated[list[str] | None, typer.Option("--tag", help="A tag to add; may be repeated.")] = None,
    metadata: Annotated[
        list[str] | None, typer.Option("--metadata", help="A field to add; may be repeated.", metavar="K=V")
    ] = None,
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
    """
    if len(folders) > 1 and (name or sample or domain):
        raise typer.BadParameter(
            "--name, --domain and --sample go with one folder: push one at a time, or use --namespace for several, "
            "each with its own domain and sample in it."
        )
    plan = _Plan(
        folders=[(read_directory(path), _checked(name or f"{namespace}/{slug(path)}")) for path in folders],
        extra={
            "domain": domain,
            "base": None if base is None else base.removeprefix("base/"),
            "texts": None if sample is None else read_texts(sample),
            "tags": tag or (),
            "metadata": key_values(metadata or (), "--metadata"),
        },
    )
    pushed, failed = _push_all(session.client, plan)
    if wait:
        pushed, unfinished = _wait_all(session.client, pushed)
        failed += unfinished
    if session.json:
        as_json(pushed[0] if len(folders) == 1 and pushed else {"object": "list", "data": pushed})
    else:
        for adapter in pushed:
            data(adapter["ref"])
    if failed:
        raise typer.Exit(worst_code(failed))


def _push_all(client: SoupClient, plan: _Plan) -> tuple[list[dict[str, Any]], list[SoupError]]:
    """Push every folder; one that is refused does not keep the others."""
    pushed, failed = [], []
    with progress_bar("pushing") as report:
        for number, (folder, name) in enumerate(plan.folders):
            report(number, len(plan.folders), name)
            try:
                adapter = push_folder(client, folder, name=name, **plan.extra)
            except ValidationError as error:
                raise usage_error(
                    error, {"tags": "--tag", "metadata": "--metadata", "domain": "--domain", "base_model": "--base"}
                ) from None
            except SoupError as error:
                talk(f"{folder.path}: {explain(error)}")
                failed.append(error)
                continue
            pushed.append(adapter)
            _comment(adapter)
    return pushed, failed


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


def _wait_all(client: SoupClient, pushed: Sequence[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[SoupError]]:
    """The adapters once their samples are embedded; one whose sample could not be stays as it was pushed."""
    found, failed = [], []
    for adapter in pushed:
        try:
            found.append(_wait_one(client, adapter) if adapter.get("job") else adapter)
        except SoupError as error:
            talk(f"{adapter['ref']}: {explain(error)}")
            found.append(adapter)
            failed.append(error)
    return found, failed


def _wait_one(client: SoupClient, adapter: dict[str, Any]) -> dict[str, Any]:
    with progress_bar(f"embedding {adapter['ref']}") as report:
        client.wait_job(adapter["job"], progress=report)
    return {**adapter, **client.adapter(adapter["ref"])}


def _checked(name: str) -> str:
    split_name(name)
    return name


def slug(path: Path) -> str:
    """A folder's name as an adapter's: lower case, other characters as `-`."""
    return re.sub(r"[^a-z0-9._-]+", "-", path.resolve().name.lower()).lstrip("._-")[:64] or "adapter"
