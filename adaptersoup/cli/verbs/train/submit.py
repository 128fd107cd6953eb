"""`soup train submit`: trains an adapter as a job of the server, which pushes it."""

from __future__ import annotations

import gzip
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from pydantic import ValidationError

from adaptersoup.cli.flags import ParsedFlags, usage_error
from adaptersoup.cli.output import progress_bar, talk
from adaptersoup.cli.remote import Remote, verb
from adaptersoup.cli.verbs.train.training_flags import TRAINING, SampleSize, spec_of
from adaptersoup.client import SoupClient
from registry.errors import InvalidParameter, NotFound
from registry.names import split_name
from training.request import TrainingRequest
from training.spec import SAMPLE, TrainingSpec

_NAMES = {
    "domain": "--domain",
    "base_model": "--base",
    "name": "--name",
    "valid_share": "--valid-share",
    "sample": "--sample",
    "owner": "--owner",
    "": "--valid, --valid-share",
}


@dataclass(frozen=True)
class Material:
    """The options for data and base model, and for the name of the adapter."""

    texts: Annotated[
        Path, typer.Option("--texts", "--data", help='Training data: .jsonl(.gz) of {"text"}, or of the task.')
    ]
    name: Annotated[str, typer.Option(help="Name of the adapter, as namespace/name.")]
    base: Annotated[str, typer.Option(help="Id of the base model on the server.")]
    valid: Annotated[Path | None, typer.Option(help="Validation data of the domain; the best state on it is kept.")] = (
        None
    )
    valid_share: Annotated[
        float | None, typer.Option(help="Without --valid: fraction of the data to hold out; by default 0.1.")
    ] = None
    domain: Annotated[str | None, typer.Option(help="Domain label; by default the name of the adapter.")] = None
    owner: Annotated[str | None, typer.Option(help="Owner of the name, such as a team or an address.")] = None


@verb
def submit(
    remote: Remote,
    material: Material,
    flags: Annotated[ParsedFlags, TRAINING],
    sample: SampleSize = SAMPLE,
    wait: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Wait until the adapter is trained and pushed.")
    ] = True,
) -> None:
    """Train an adapter on the server, and push it there.

    Prints its name and version, or the job with --no-wait. The same command resumes a training that was cancelled with
    `soup jobs cancel`, and prints the result of a finished one. With --adamix the bank of experts is pushed as
    NAME-bank. --members are adapters on the server.

    \b
    Examples:
      soup train submit --texts law.jsonl --valid law-valid.jsonl --name team/law --base small --steps 500
      soup train submit --texts law.jsonl --name team/law --base small --adamix 4 --no-wait
    """
    result = remote.client.train(_request(remote.client, material, spec_of(flags), sample), wait=False)
    line = str(result["id"])
    if wait:
        result = remote.follow("training", result)
        line = str(result["adapter"])
    for warning in result.get("warnings") or ():
        talk(warning)
    remote.answer(result, line)


def _request(client: SoupClient, material: Material, spec: TrainingSpec, sample: int) -> TrainingRequest:
    """The request of a training, whose data are uploaded here; raises a usage error that names the flags."""
    _, name = split_name(material.name)
    blobs = {"texts": _uploaded(client, material.texts)}
    if material.valid is not None:
        blobs["valid"] = _uploaded(client, material.valid)
    try:
        return TrainingRequest(
            name=material.name,
            domain=material.domain or name,
            base_model=material.base,
            owner=material.owner,
            valid_share=material.valid_share,
            spec=spec,
            sample=sample,
            **blobs,
        )
    except ValidationError as error:
        raise usage_error(error, _NAMES) from None


def _uploaded(client: SoupClient, path: Path) -> str:
    """Upload a file's JSON lines, and return their digest."""
    try:
        content = path.read_bytes()
        content = gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content
    except (EOFError, zlib.error, gzip.BadGzipFile):
        raise InvalidParameter(f"{path} is not a whole gzip file.", param="texts") from None
    except OSError as error:
        raise NotFound(f"{path} cannot be read: {error.strerror}.", param="texts") from None
    with progress_bar(path.name) as report:
        return client.upload(content, progress=report)
