"""The verb `soup push`: reads and checks all adapters, sends them, and tells what became of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

from adaptersoup.cli.failures import Failures, explain
from adaptersoup.cli.flags import base_id, key_values
from adaptersoup.cli.output import as_json, data, progress_bar, talk
from adaptersoup.cli.remote import Remote, verb
from adaptersoup.cli.verbs.push.manifest_file import COLUMNS, from_manifest
from adaptersoup.cli.verbs.push.outcomes import Outcome, comment, summary
from adaptersoup.cli.verbs.push.sending import AT_ONCE, send_all
from adaptersoup.cli.verbs.push.sources import Samples, Source, from_folders, local_folders, read_source
from adaptersoup.client import SoupClient
from adaptersoup.client.additions import Additions
from registry.errors import SoupError


@dataclass(frozen=True)
class Said:
    """What the flags say of the adapters, in the place of their directories or beside it."""

    domain: Annotated[str | None, typer.Option(help="Domain label, instead of the folder's.")] = None
    base: Annotated[
        str | None,
        typer.Option(callback=base_id, help="Base model on the server, instead of the one the folders name."),
    ] = None
    sample: Annotated[
        Path | None, typer.Option(help="Sample, instead of the folder's: a file, or a folder of files.")
    ] = None
    owner: Annotated[
        str | None,
        typer.Option(help="Who answers for the name (a team, an address), also of adapters that are there."),
    ] = None
    tag: Annotated[list[str] | None, typer.Option(help="A tag to add; may be repeated.")] = None
    metadata: Annotated[list[str] | None, typer.Option(help="A field to add; may be repeated.", metavar="K=V")] = None

    def additions(self) -> Additions:
        """The same for a push, without the sample. Raises a usage error."""
        metadata = key_values(self.metadata or (), "--metadata")
        return Additions(domain=self.domain, base=self.base, owner=self.owner, tags=self.tag or (), metadata=metadata)


@dataclass(frozen=True)
class Many:
    """What is said of many adapters in one call."""

    manifest: Annotated[
        Path | None,
        typer.Option(help=f"CSV with a row for each adapter; columns {', '.join(COLUMNS)}.", metavar="FILE.csv"),
    ] = None
    samples: Annotated[
        Path | None,
        typer.Option(
            help="Samples of many: a folder of files that are called after the adapters' folders or domains, or a file "
            'of JSON lines of {"domain", "text"}.'
        ),
    ] = None
    parallel: Annotated[int, typer.Option(min=1, max=16, help="Adapters sent at once.")] = AT_ONCE


@verb
def push(
    remote: Remote,
    folders: Annotated[
        list[Path] | None,
        typer.Argument(
            help="Adapter directories, those of PEFT as they are; hub:OWNER/NAME[@REVISION] is downloaded first.",
            metavar="FOLDER...",
        ),
    ] = None,
    name: Annotated[str | None, typer.Option("--name", help="namespace/name; with one folder only.")] = None,
    namespace: Annotated[
        str, typer.Option(help="Namespace of adapters that are named after their folder.")
    ] = "default",
    *,
    more: Said,
    many: Many,
    anew: Annotated[
        bool, typer.Option("--anew", help="Send all bytes, also those that are there: repairs what is damaged.")
    ] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until the samples are embedded.")] = False,
) -> None:
    """Push adapter directories.

    Prints the name and version each is known by; pushing the same again changes nothing. Of several, what the server
    has already, whole, is not sent again, one that is refused does not keep the others, a folder that names no domain
    is of the one it is called after, and a table says what became of each.

    \b
    Examples:
      soup push adapters/law --name team/law --wait
      soup push adapters/* --namespace team --tag v2 --metadata trained_by=ana
      soup push adapters/law --name team/law --sample passages.jsonl
      soup push peft-folder --name team/law --domain law --sample law.jsonl --base small
      soup push hub:someone/law-lora@v2 --name team/law --domain law
      soup push many/* --namespace acme --samples corpora/
      soup push --manifest many.csv --namespace acme
    """
    _check(folders or [], name, more, many)
    failed = Failures()
    with local_folders(folders or []) as local:
        sources = _sources(local, name, namespace, more, many)
        several = len(sources) > 1 or many.manifest is not None
        outcomes = [_read(source, own_domain=several) for source in sources]
        try:
            send_all(remote.client, outcomes, at_once=many.parallel, many=several, anew=anew)
            if wait:
                _wait_all(remote.client, outcomes, failed)
        except KeyboardInterrupt:
            _tell(remote, outcomes, several)
            raise
    _tell(remote, outcomes, several)
    failed += [one.error for one in outcomes if one.error is not None]
    failed.end()


def _check(folders: Sequence[Path], name: str | None, more: Said, many: Many) -> None:
    """Raises a usage error for arguments that do not go together."""
    if many.manifest is None and not folders:
        raise typer.BadParameter("Give at least one FOLDER, or --manifest FILE.csv.")
    if (len(folders) > 1 or many.manifest is not None) and (name or more.sample or more.domain):
        raise typer.BadParameter(
            "--name, --domain and --sample go with one folder: push one at a time, or use --namespace for several, "
            "each with its own domain and sample in it, or said in a CSV (--manifest) or with --samples."
        )
    if many.manifest is not None and folders:
        raise typer.BadParameter("--manifest names the folders: drop FOLDER, or the option.")


def _sources(folders: Sequence[Path], name: str | None, namespace: str, more: Said, many: Many) -> list[Source]:
    """What is to be pushed; raises a usage error for a manifest that names nothing."""
    said = more.additions()
    if many.manifest is not None:
        sources = from_manifest(many.manifest, namespace=namespace, more=said)
    else:
        sources = from_folders(folders, namespace=namespace, name=name, more=said, sample=more.sample)
    if not sources:
        raise typer.BadParameter(f"{many.manifest} names no adapter.")
    samples = None if many.samples is None else Samples(many.samples)
    return [replace(source, samples=samples) for source in sources]


def _read(source: Source, *, own_domain: bool) -> Outcome:
    """A source with its directory, or refused; raises what is wrong with the one that there is."""
    found = read_source(source, own_domain=own_domain)
    if not isinstance(found, SoupError):
        return Outcome(found)
    if not own_domain:
        raise found
    return Outcome(source, state="refused", error=found)


def _tell(remote: Remote, outcomes: Sequence[Outcome], several: bool) -> None:
    adapters = [one.adapter for one in outcomes if one.adapter is not None]
    if remote.json:
        pushes = [one.as_json() for one in outcomes]
        one = adapters[0] if adapters and not several else None
        as_json(one or {"object": "list", "data": adapters, "pushes": pushes})
    elif several:
        summary(outcomes)
    else:
        for adapter in adapters:
            comment(adapter)
            data(adapter["ref"])
    if not several and outcomes[0].error is not None:
        talk(f"{outcomes[0].source.path}: {explain(outcomes[0].error)}")


def _wait_all(client: SoupClient, outcomes: Sequence[Outcome], failed: Failures) -> None:
    """Wait until samples are embedded; an adapter whose sample could not be stays as it was pushed."""
    for one in outcomes:
        if one.adapter is not None and (one.adapter.get("job") or one.adapter.get("sample_state") == "pending"):
            with failed.of(one.ref):
                with progress_bar(f"embedding {one.ref}") as report:
                    client.wait_embedded(one.adapter, progress=report)
                one.adapter = {**one.adapter, **client.adapter(one.ref)}
