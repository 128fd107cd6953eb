"""`soup convert`: converts AdapterHub checkpoints to adapter directories and back, without a server.

Torch is imported when tensors are read, not for the help.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import typer
from pydantic import ValidationError

from adaptersoup.cli.commands import command
from adaptersoup.cli.flags import base_id, usage_error
from adaptersoup.cli.output import answer, talk
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
"""Key in a converted adapter's provenance for fields of its checkpoint, which the way back needs."""


@dataclass(frozen=True)
class ToSoup:
    """The options for fields of an adapter directory that a checkpoint lacks."""

    SECTION: ClassVar[str] = "To an adapter directory"
    domain: Annotated[str | None, typer.Option(help="Domain label, which checkpoints lack.")] = None
    base: Annotated[str | None, typer.Option(callback=base_id, help="Id of the base model on the server.")] = None
    sample: Annotated[Path | None, typer.Option(help='Texts of the domain: .jsonl(.gz) of {"text"}, or .txt.')] = None


@dataclass(frozen=True)
class ToAdapterHub:
    """The options for fields of a checkpoint that an adapter directory lacks."""

    SECTION: ClassVar[str] = "To a checkpoint"
    name: Annotated[
        str | None, typer.Option(help="Name in the checkpoint; by default its former name, or that of TARGET.")
    ] = None
    family: Annotated[Family | None, typer.Option(help="Family of the base model, if SOURCE does not name it.")] = None
    safetensors: Annotated[
        bool, typer.Option("--safetensors", help="Write adapter.safetensors instead of pytorch_adapter.bin.")
    ] = False


Result = tuple[list[str], dict[str, Any]]
"""Notes for the user, and the fields that --json adds."""


@command
def convert(
    source: Annotated[Path, typer.Argument(help="Directory to read.", metavar="SOURCE")],
    target: Annotated[Path, typer.Argument(help="Directory to write.", metavar="TARGET")],
    to: Annotated[Format, typer.Option("--to", help="Format to write.")] = "soup",
    *,
    soup: ToSoup,
    adapterhub: ToAdapterHub,
    as_json: Annotated[bool, typer.Option("--json", help="Print directory and configuration as JSON.")] = False,
    replace: Annotated[bool, typer.Option("--replace", help="Overwrite an existing directory.")] = False,
) -> None:
    """Convert AdapterHub checkpoints to adapter directories, and back.

    Converts bottlenecks in the format of save_adapter, with the same logits: Pfeiffer, Bapna-Firat, Houlsby and
    parallel adapters of GPT-2, Llama, Mistral, BERT, RoBERTa and DistilBERT. Refuses a feature that the target format
    lacks. Prints the directory.

    \b
    Examples:
      soup convert checkpoints/law adapters/law --domain law --base small --sample law.jsonl
      soup push adapters/law --name team/law --wait
      soup convert adapters/law checkpoints/law --to adapterhub --family gpt2
    """
    _check_directories(source, target, replace=replace)
    if to == "soup":
        _refuse_options(adapterhub, to)
        notes, fields = _to_soup(source, target, soup, replace=replace)
    else:
        _refuse_options(soup, to)
        notes, fields = _to_adapterhub(source, target, adapterhub, replace=replace)
    for note in notes:
        talk(note)
    answer({"object": "folder", "path": str(target), **fields, "notes": notes}, str(target), json=as_json)


def _check_directories(source: Path, target: Path, *, replace: bool) -> None:
    """Raise NotFound or Conflict unless SOURCE exists and TARGET can be written, outside of SOURCE."""
    if not source.is_dir():
        raise NotFound(f"{source} is not a directory: give the one that holds adapter_config.json and the weights.")
    read, written = source.resolve(), target.resolve()
    if read.is_relative_to(written) or written.is_relative_to(read):
        raise Conflict(f"One of {target} and {source} is inside the other: choose a separate directory.")
    check_place(target, replace=replace, advice="add --replace")


def _refuse_options(options: ToSoup | ToAdapterHub, to: Format) -> None:
    flags = [f"--{name}" for name, value in asdict(options).items() if value]
    if flags:
        raise typer.BadParameter(f"{', '.join(flags)}: not an option of --to {to}.")


def _to_soup(source: Path, target: Path, options: ToSoup, *, replace: bool) -> Result:
    """Write an adapter directory from an AdapterHub checkpoint."""
    from registry.adapters.weights import save_tensors
    from registry.formats.adapterhub import is_checkpoint, read_checkpoint

    if not is_checkpoint(source) and (source / OUR_WEIGHTS).is_file():
        raise InvalidParameter(
            f"{source} is an adapter directory already: push it with `soup push`, or convert it with --to adapterhub.",
            param="source",
        )
    if options.domain is None:
        raise typer.BadParameter("AdapterHub checkpoints have no domain: give one with --domain.")
    texts = None if options.sample is None else read_texts(options.sample)
    checkpoint = read_checkpoint(source)
    try:
        folder = write_directory(
            target,
            AdapterContents(
                config=checkpoint.config,
                domain=options.domain,
                weights=save_tensors(checkpoint.tensors),
                base_model=options.base,
                provenance=_provenance(checkpoint),
                texts=texts,
                card=_card(source / CARD_FILE),
            ),
            replace=replace,
        )
    except ValidationError as error:
        raise usage_error(error, {"domain": "--domain", "base_model": "--base"}) from None
    return _notes(checkpoint, options), {"config": folder.config.model_dump(mode="json")}


def _card(file: Path) -> Card:
    """The card in a checkpoint's directory; an empty one if there is none."""
    if not file.is_file():
        return Card()
    if file.stat().st_size > MAX_CARD_BYTES:
        raise InvalidManifest(f"{file} has {file.stat().st_size} bytes and the limit is {MAX_CARD_BYTES}.")
    try:
        return parse_card(file.read_text("utf-8"), foreign=True)
    except UnicodeDecodeError as error:
        raise InvalidManifest(f"{file} is not valid UTF-8 at byte {error.start}.") from None


def _provenance(checkpoint: Checkpoint) -> Provenance:
    """The fields of a checkpoint that the way back needs; its initialisation is unknown."""
    fields = {name: getattr(checkpoint, name) for name in ("name", "model_type", "model_name", "version")}
    return Provenance(training={ORIGIN: {name: value for name, value in fields.items() if value is not None}})


def _notes(checkpoint: Checkpoint, options: ToSoup) -> list[str]:
    notes = []
    if checkpoint.ignored_files:
        notes.append(f"Left out, as they are no part of the adapter: {', '.join(checkpoint.ignored_files)}.")
    if options.base is None:
        made_for = f" (it was made for {checkpoint.model_name})" if checkpoint.model_name else ""
        notes.append(f"No base model is named{made_for}: add --base here or to `soup push`.")
    if options.sample is None:
        notes.append("No sample: the adapter can be used but not selected; add --sample here or to `soup push`.")
    return notes


def _to_adapterhub(source: Path, target: Path, options: ToAdapterHub, *, replace: bool) -> Result:
    """Write an AdapterHub checkpoint from an adapter directory."""
    from registry.adapters.weights import load_tensors
    from registry.formats.adapterhub import FAMILIES, checkpoint_files, is_checkpoint

    if is_checkpoint(source):
        raise InvalidParameter(f"{source} is an AdapterHub checkpoint: --to soup converts it.", param="source")
    folder = read_directory(source)
    origin = _origin(folder)
    model_type = options.family or origin.get("model_type")
    if model_type is None:
        raise typer.BadParameter(f"The family of the base model is unknown: give --family ({', '.join(FAMILIES)}).")
    name = options.name or origin.get("name") or re.sub(r"[^A-Za-z0-9_-]+", "_", target.resolve().name)
    files = checkpoint_files(
        folder.config,
        load_tensors(folder.weights.read_bytes()),
        name=name,
        model_type=model_type,
        model_name=origin.get("model_name"),
        safetensors=options.safetensors,
    )
    place_files(target, files, replace=replace)
    notes = [f"Left out, as a checkpoint holds none: the domain {folder.domain!r}, sample and card."]
    if options.safetensors:
        notes.append("Load it with load_adapter(..., use_safetensors=True).")
    return notes, {"name": name, "model_type": model_type}


def _origin(folder: AdapterDirectory) -> dict[str, str]:
    """The fields of its checkpoint that a converted directory has in its provenance."""
    origin = folder.provenance.training.get(ORIGIN)
    if not isinstance(origin, dict):
        return {}
    return {key: value for key, value in origin.items() if isinstance(value, str)}
