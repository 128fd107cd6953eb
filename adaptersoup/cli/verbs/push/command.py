"""The verb `soup push`: reads and checks all adapters, sends them, and prints the outcome of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, ClassVar

import typer

from adaptersoup.cli.failures import Failures, explain
from adaptersoup.cli.flags import key_values
from adaptersoup.cli.output import as_json, data, progress_bar, talk
from adaptersoup.cli.remote import Remote, verb
from adaptersoup.cli.verbs.push.manifest_file import COLUMNS, from_manifest
from adaptersoup.cli.verbs.push.outcomes import Outcome, notes, print_summary
from adaptersoup.cli.verbs.push.sending import AT_ONCE, send_all
from adaptersoup.cli.verbs.push.sources import Samples, Source, from_folders, local_folders, read_source
from adaptersoup.client import SoupClient
from adaptersoup.client.additions import Additions
from registry.errors import SoupError


@dataclass(frozen=True)
class AdapterFlags:
    """The options for fields of the adapters, which replace or extend those of their directories."""

    SECTION: ClassVar[str] = "Adapter"
    domain: Annotated[str | None, typer.Option(help="Domain label, instead of that of the folder.")] = None
    base: Annotated[
        str | None,
        typer.Option(help="Base model on the server, instead of that of the folder."),
    ] = None
    sample: Annotated[
        Path | None, typer.Option(help="Sample, instead of that of the folder: a file, or a folder of files.")
    ] = None
    owner: Annotated[
        str | None,
        typer.Option(help="Owner of the name, such as a team or an address; also changes that of existing names."),
    ] = None
    tag: Annotated[list[str] | None, typer.Option(help="Tag to add; repeatable.")] = None
    metadata: Annotated[list[str] | None, typer.Option(help="Field to add; repeatable.", metavar="K=V")] = None

    def additions(self) -> Additions:
        """The fields of a push, without the sample; raises a usage error."""
        metadata = key_values(self.metadata or (), "--metadata")
        return Additions(domain=self.domain, base=self.base, owner=self.owner, tags=self.tag or (), metadata=metadata)


@dataclass(frozen=True)
class BatchFlags:
    """The options for pushing many adapters at once."""

    SECTION: ClassVar[str] = "Several adapters"
    manifest: Annotated[
        Path | None,
        typer.Option(help=f"CSV with a row for each adapter; columns {', '.join(COLUMNS)}.", metavar="FILE.csv"),
    ] = None
    samples: Annotated[
        Path | None,
        typer.Option(
            help="Samples: a folder of files named after the adapters' folders or domains, or a file "
            'of JSON lines of {"domain", "text"} or {"domain", "prompt", "answer"}.'
        ),
    ] = None
    parallel: Annotated[int, typer.Option(min=1, max=16, help="Number of adapters to send at once.")] = AT_ONCE


@verb
def push(
    remote: Remote,
    folders: Annotated[
        list[Path] | None,
        typer.Argument(
            help="Adapter directories, also those of PEFT; hub:OWNER/NAME[@REVISION] is downloaded first.",
            metavar="FOLDER...",
        ),
    ] = None,
    name: Annotated[str | None, typer.Option("--name", help="Name, as namespace/name; only with one folder.")] = None,
    namespace: Annotated[
        str | None,
        typer.Option(help="Namespace of adapters, whose names are those of their folders (default: 'default')."),
    ] = None,
    *,
    fields: AdapterFlags,
    batch: BatchFlags,
    anew: Annotated[bool, typer.Option("--anew", help="Send all files again, which repairs damaged ones.")] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until the samples are embedded.")] = False,
) -> None:
    """Push adapter directories.

    Prints the name and version of each adapter. Pushing the same adapter again changes nothing. With several folders,
    only files that the server lacks are sent, a refused adapter does not stop the others, and a table shows the result
    of each. A folder without a domain gets its own name as its domain.

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
    _check(folders or [], name, namespace, fields, batch)
    failed = Failures()
    with local_folders(folders or []) as (local, download_errors):
        sources = _sources(local, name, "default" if namespace is None else namespace, fields, batch)
        is_batch = len(sources) > 1 or batch.manifest is not None
        outcomes = [_read(source, download_errors.get(source.path), is_batch=is_batch) for source in sources]
        try:
            send_all(remote.client, outcomes, at_once=batch.parallel, is_batch=is_batch, anew=anew)
            if wait:
                _wait_all(remote.client, outcomes, failed)
        except KeyboardInterrupt:
            _print(remote, outcomes, is_batch=is_batch)
            raise
    _print(remote, outcomes, is_batch=is_batch)
    failed += [outcome.error for outcome in outcomes if outcome.error is not None]
    failed.end()


def _check(
    folders: Sequence[Path], name: str | None, namespace: str | None, fields: AdapterFlags, batch: BatchFlags
) -> None:
    """Raise a usage error for arguments that exclude each other."""
    if batch.manifest is None and not folders:
        raise typer.BadParameter("Give at least one FOLDER, or --manifest FILE.csv.")
    if (len(folders) > 1 or batch.manifest is not None) and (name or fields.sample or fields.domain):
        raise typer.BadParameter(
            "--name, --domain and --sample are for a single folder. For several, use --namespace, with the "
            "domain and sample in each folder, in a CSV (--manifest) or in --samples."
        )
    if batch.manifest is not None and folders:
        raise typer.BadParameter("--manifest names the folders: drop FOLDER, or the option.")
    if name is not None and namespace is not None:
        raise typer.BadParameter("--name includes the namespace, as namespace/name: drop --namespace.")
    if fields.sample is not None and batch.samples is not None:
        raise typer.BadParameter("--sample and --samples both name the sample: drop one of them.")


def _sources(
    folders: Sequence[Path], name: str | None, namespace: str, fields: AdapterFlags, batch: BatchFlags
) -> list[Source]:
    """The adapters to push; raises a usage error for an empty manifest."""
    additions = fields.additions()
    if batch.manifest is not None:
        sources = from_manifest(batch.manifest, namespace=namespace, additions=additions)
    else:
        sources = from_folders(folders, namespace=namespace, name=name, additions=additions, sample=fields.sample)
    if not sources:
        raise typer.BadParameter(f"{batch.manifest} names no adapter.")
    samples = None if batch.samples is None else Samples(batch.samples)
    return [replace(source, samples=samples) for source in sources]


def _read(source: Source, download_error: SoupError | None, *, is_batch: bool) -> Outcome:
    """A source with its directory read; raises its error, or returns it as the outcome in a batch."""
    try:
        if download_error is not None:
            raise download_error
        return Outcome(read_source(source, domain_from_folder=is_batch))
    except SoupError as error:
        if not is_batch:
            raise
        return Outcome(source, state="refused", error=error)


def _print(remote: Remote, outcomes: Sequence[Outcome], *, is_batch: bool) -> None:
    adapters = [outcome.adapter for outcome in outcomes if outcome.adapter is not None]
    if remote.json and adapters and not is_batch:
        as_json(adapters[0])
    elif remote.json:
        as_json({"object": "list", "data": adapters, "pushes": [outcome.as_json() for outcome in outcomes]})
    elif is_batch:
        print_summary(outcomes)
    else:
        for adapter in adapters:
            for note in notes(adapter):
                talk(f"{adapter['ref']}: {note}")
            data(adapter["ref"])
    if not is_batch and outcomes[0].error is not None:
        talk(f"{outcomes[0].source.path}: {explain(outcomes[0].error)}")


def _wait_all(client: SoupClient, outcomes: Sequence[Outcome], failed: Failures) -> None:
    """Wait until the samples are embedded; collects errors, after which an outcome stays as it was pushed."""
    for outcome in outcomes:
        adapter = outcome.adapter
        if adapter is not None and (adapter.get("job") or adapter.get("sample_state") == "pending"):
            with failed.of(outcome.ref):
                with progress_bar(f"embedding {outcome.ref}") as report:
                    client.wait_embedded(adapter, progress=report)
                outcome.adapter = {**adapter, **client.adapter(outcome.ref)}
