"""`soup convert`: adapter directories of other libraries to ours and back, on this machine; it needs no server.

Torch is imported when tensors are read, not for the help.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from pydantic import ValidationError

from adaptersoup.cli.commands import command
from adaptersoup.cli.flags import base_id, usage_error
from adaptersoup.cli.output import as_json as print_json
from adaptersoup.cli.output import data, talk
from adaptersoup.client.samples import read_texts
from registry.errors import Conflict, InvalidManifest, InvalidParameter, NotFound
from registry.formats import (
    CARD_FILE,
    AdapterContents,
    AdapterDirectory,
    check_place,
    parse_card,
    place_files,
    read_directory,
    write_directory,
)
from registry.formats import WEIGHTS_FILE as OUR_WEIGHTS
from registry.spec import Card, Provenance

if TYPE_CHECKING:
    from registry.formats.adapterhub import Checkpoint

Format = Literal["soup", "adapterhub"]
Family = Literal["gpt2", "llama", "mistral", "bert", "roberta", "distilbert"]
MAX_CARD_BYTES = 2**20
ORIGIN = "adapterhub"
"""Where a converted adapter's provenance keeps what its checkpoint said; read again on the way back."""


@dataclass(frozen=True)
class ToSoup:
    """What a directory of ours says and a checkpoint does not."""

    domain: Annotated[str | None, typer.Option(help="Domain label; AdapterHub has none.")] = None
    base: Annotated[str | None, typer.Option(callback=base_id, help="Id of the base model on the server.")] = None
    sample: Annotated[Path | None, typer.Option(help='Texts of the domain: .jsonl(.gz) of {"text"}, or .txt.')] = None


@dataclass(frozen=True)
class ToAdapterHub:
    """What a checkpoint says and a directory of ours does not."""

    name: Annotated[str | None, typer.Option(help="Name in the checkpoint; by default as before, or TARGET's.")] = None
    family: Annotated[Family | None, typer.Option(help="Family of the base model, where SOURCE does not say.")] = None
    safetensors: Annotated[
        bool, typer.Option("--safetensors", help="Write adapter.safetensors instead of pytorch_adapter.bin.")
    ] = False


Result = tuple[list[str], dict[str, Any]]
"""What became of the source: notes for people, and what --json says."""


@command
def convert(
    source: Annotated[Path, typer.Argument(help="Directory to read.", metavar="SOURCE")],
    target: Annotated[Path, typer.Argument(help="Directory to write.", metavar="TARGET")],
    to: Annotated[Format, typer.Option("--to", help="Format to write.")] = "soup",
    *,
    ours: ToSoup,
    theirs: ToAdapterHub,
    as_json: Annotated[bool, typer.Option("--json", help="Print directory and configuration as JSON.")] = False,
    replace: Annotated[bool, typer.Option("--replace", help="Overwrite the directory if it is there.")] = False,
) -> None:
    """Convert AdapterHub checkpoints to adapter directories, and back.

    Pfeiffer, Houlsby and parallel adapters of GPT-2, Llama and Mistral, as save_adapter wrote them; with the same
    logits. What the other side cannot express is refused by its name. Prints the directory.

    \b
    Examples:
      soup convert checkpoints/law adapters/law --domain law --base small --sample law.jsonl
      soup push adapters/law --name team/law --wait
      soup convert adapters/law checkpoints/law --to adapterhub --family gpt2
    """
    _check_places(source, target, replace=replace)
    if to == "soup":
        _refuse_options(theirs, to)
        notes, about = _to_soup(source, target, ours, replace=replace)
    else:
        _refuse_options(ours, to)
        notes, about = _to_adapterhub(source, target, theirs, replace=replace)
    for note in notes:
        talk(note)
    if as_json:
        print_json({"object": "folder", "path": str(target), **about, "notes": notes})
    else:
        data(str(target))


def _check_places(source: Path, target: Path, *, replace: bool) -> None:
    """Nothing is read for a TARGET that cannot be written, and SOURCE is never replaced."""
    if not source.is_dir():
        raise NotFound(f"{source} is not a directory: give the one that holds adapter_config.json and the weights.")
    places = source.resolve(), target.resolve()
    if places[0] == places[1] or places[0] in places[1].parents or places[1] in places[0].parents:
        raise Conflict(f"{target} and {source} hold one another: choose a directory of its own.")
    check_place(target, replace=replace, advice="add --replace")


def _refuse_options(options: ToSoup | ToAdapterHub, to: Format) -> None:
    given = [f"--{name}" for name, value in asdict(options).items() if value]
    if given:
        raise typer.BadParameter(f"{', '.join(given)}: not an option of --to {to}.")


def _to_soup(source: Path, target: Path, given: ToSoup, *, replace: bool) -> Result:
    """Write an adapter directory of ours from an AdapterHub checkpoint."""
    from registry.adapters.weights import save_tensors
    from registry.formats.adapterhub import is_checkpoint, read_checkpoint

    if not is_checkpoint(source) and (source / OUR_WEIGHTS).is_file():
        raise InvalidParameter(
            f"{source} is a directory that `soup push` takes as it is; --to adapterhub converts one of ours.",
            param="source",
        )
    if given.domain is None:
        raise typer.BadParameter("AdapterHub checkpoints have no domain: give one with --domain.")
    texts = None if given.sample is None else read_texts(given.sample)
    checkpoint = read_checkpoint(source)
    try:
        folder = write_directory(
            target,
            AdapterContents(
                config=checkpoint.config,
                domain=given.domain,
                weights=save_tensors(checkpoint.tensors),
                base_model=given.base,
                provenance=_provenance(checkpoint),
                texts=texts,
                card=_card(source / CARD_FILE),
            ),
            replace=replace,
        )
    except ValidationError as error:
        raise usage_error(error, {"domain": "--domain", "base_model": "--base"}) from None
    return _notes(checkpoint, given), {"config": folder.config.model_dump(mode="json")}


def _card(file: Path) -> Card:
    """The card beside a checkpoint, as hubs keep one; empty where there is none."""
    if not file.is_file():
        return Card()
    if file.stat().st_size > MAX_CARD_BYTES:
        raise InvalidManifest(f"{file} has {file.stat().st_size} bytes and the limit is {MAX_CARD_BYTES}.")
    try:
        return parse_card(file.read_text("utf-8"), foreign=True)
    except UnicodeDecodeError as error:
        raise InvalidManifest(f"{file} is not valid UTF-8 at byte {error.start}.") from None


def _provenance(checkpoint: Checkpoint) -> Provenance:
    """What the checkpoint said of itself; its initialisation is unknown."""
    said = {name: getattr(checkpoint, name) for name in ("name", "model_type", "model_name", "version")}
    return Provenance(training={ORIGIN: {name: value for name, value in said.items() if value is not None}})


def _notes(checkpoint: Checkpoint, given: ToSoup) -> list[str]:
    notes = []
    if checkpoint.ignored_files:
        notes.append(f"Left out, as they are no part of the adapter: {', '.join(checkpoint.ignored_files)}.")
    if given.base is None:
        made_for = f" (it was made for {checkpoint.model_name})" if checkpoint.model_name else ""
        notes.append(f"No base model is named{made_for}: add --base here or to `soup push`.")
    if given.sample is None:
        notes.append("No sample: the adapter can be used but not selected; add --sample here or to `soup push`.")
    return notes


def _to_adapterhub(source: Path, target: Path, given: ToAdapterHub, *, replace: bool) -> Result:
    """Write an AdapterHub checkpoint from an adapter directory of ours."""
    from registry.adapters.weights import load_tensors
    from registry.formats.adapterhub import FAMILIES, checkpoint_files, is_checkpoint

    if is_checkpoint(source):
        raise InvalidParameter(f"{source} is an AdapterHub checkpoint: --to soup converts it.", param="source")
    folder = read_directory(source)
    origin = _origin(folder)
    model_type = given.family or origin.get("model_type")
    if model_type is None:
        raise typer.BadParameter(f"Which family is the base model of? Give --family ({', '.join(FAMILIES)}).")
    called = given.name or origin.get("name") or re.sub(r"[^A-Za-z0-9_-]+", "_", target.resolve().name)
    files = checkpoint_files(
        folder.config,
        load_tensors(folder.weights.read_bytes()),
        name=called,
        model_type=model_type,
        model_name=origin.get("model_name"),
        safetensors=given.safetensors,
    )
    place_files(target, files, replace=replace)
    notes = [f"Left out, as a checkpoint holds none: the domain {folder.domain!r}, sample and card."]
    if given.safetensors:
        notes.append("Load it with load_adapter(..., use_safetensors=True).")
    return notes, {"name": called, "model_type": model_type}


def _origin(folder: AdapterDirectory) -> dict[str, str]:
    """What a converted directory remembers of its checkpoint."""
    origin = folder.provenance.training.get(ORIGIN)
    if not isinstance(origin, dict):
        return {}
    return {key: value for key, value in origin.items() if isinstance(value, str)}
