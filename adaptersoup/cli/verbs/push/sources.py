"""What `soup push` pushes: a directory, the name it gets, and what is said of it beside what stands in it.

Sources come from folders on the command line, or from the rows of a CSV file (`manifest_file`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import typer

from adaptersoup.cli.output import talk
from adaptersoup.client.additions import Additions, name_of
from adaptersoup.client.hub_names import is_hub
from adaptersoup.client.samples import find_texts, read_text, read_texts
from registry.errors import InvalidSample, NotFound, SoupError, Unavailable
from registry.files import parse_lines
from registry.formats import AdapterDirectory, read_directory
from registry.names import split_name


class Samples:
    """Where the samples of many adapters are. Raises NotFound for a path where nothing is."""

    def __init__(self, path: Path) -> None:
        if not path.exists():
            raise NotFound(f"{path} is neither a folder of samples nor a file of them.", param="sample")
        self.path = path

    def of(self, folder: str, domain: str) -> Sequence[str] | None:
        """The texts for an adapter whose folder is called so, or else for its domain; None where there are none."""
        names = dict.fromkeys((folder, domain))
        if self.path.is_dir():
            file = find_texts(self.path, filter(_is_plain, names))
            return None if file is None else read_texts(file)
        return next((self._by_domain[name] for name in (domain, folder) if name in self._by_domain), None)

    @cached_property
    def _by_domain(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = defaultdict(list)
        lines = parse_lines(read_text(self.path), name=self._line, error=_invalid)
        for number, value in lines:
            said = (value.get("domain"), value.get("text")) if isinstance(value, dict) else (None, None)
            if not (isinstance(said[0], str) and isinstance(said[1], str)):
                raise _invalid(f'{self._line(number)} is not an object with strings "domain" and "text".')
            found[said[0]].append(said[1])
        return dict(found)

    def _line(self, number: int) -> str:
        return f"{self.path}, line {number},"


def _is_plain(name: str) -> bool:
    """Whether a name is one part of a path: a domain may be any text."""
    return name not in ("", ".", "..") and "/" not in name and "\0" not in name


def _invalid(message: str) -> InvalidSample:
    return InvalidSample(message, param="sample")


@dataclass(frozen=True)
class Source:
    """One adapter to push. `more` is what is said of it, without the texts of its sample, which are read when sent."""

    path: Path
    name: str
    more: Additions
    sample: Path | None = None
    samples: Samples | None = None
    """Where a sample is looked for when there is none in `sample`."""
    read: AdapterDirectory | None = field(default=None, compare=False)

    @property
    def size(self) -> int:
        """Bytes of the weights."""
        return 0 if self.read is None else self.read.weights.stat().st_size

    def texts(self) -> Sequence[str] | None:
        """The texts of the sample, None for those of the directory; raises NotFound or InvalidSample."""
        if self.sample is not None:
            return read_texts(self.sample)
        if self.samples is None:
            return None
        said = self.read.domain if self.read is not None else None
        domain = self.more.domain or said or self.path.resolve().name
        found = self.samples.of(self.path.resolve().name, domain)
        own = self.read is not None and (self.read.sample or self.read.embeddings)
        if found is None and not own:
            raise InvalidSample(f"{self.samples.path} has no sample for {self.path} (domain {domain}).", param="sample")
        return found


def from_folders(
    folders: Sequence[Path], *, namespace: str, name: str | None, more: Additions, sample: Path | None
) -> list[Source]:
    """A source of each folder, named after it unless there is a name; raises InvalidName.

    Raises a usage error for two that get the same name: neither is meant as a version of the other.
    """
    found = [Source(path, name or f"{namespace}/{name_of(path)}", more, sample) for path in folders]
    named: dict[str, Path] = {}
    for source in found:
        split_name(source.name)
        if (other := named.setdefault(source.name, source.path)) is not source.path:
            raise typer.BadParameter(
                f"{both_named(other, source.path, source.name)}, or name them in a CSV (--manifest)."
            )
    return found


def both_named(one: Path, other: Path, name: str) -> str:
    """Why two folders do not go together of which each would be a version of the other."""
    return f"{one} and {other} would both be {name}, after their folders: give one of them another name"


def cannot_be_read(path: Path, error: OSError) -> SoupError:
    """The error for a directory, or a sample of it, that the system does not let be read."""
    return NotFound(f"{error.filename or path} cannot be read: {error.strerror or error}.", param="path")


def read_source(source: Source, *, own_domain: bool) -> Source | SoupError:
    """The source with its directory read and checked, or why it cannot be pushed.

    With `own_domain` a directory that names no domain is of the one it is called after.
    """
    try:
        read = read_directory(source.path)
        read.weights.stat()
    except SoupError as error:
        return error
    except OSError as error:
        return cannot_be_read(source.path, error)
    more = source.more
    if own_domain and more.domain is None and read.domain is None:
        more = Additions(**{**vars(more), "domain": source.path.resolve().name})
    return Source(source.path, source.name, more, source.sample, source.samples, read)


def local_folders(sources: Sequence[Path]) -> AbstractContextManager[Sequence[Path]]:
    """While open, the sources as directories of this machine: those named `hub:OWNER/NAME[@revision]` are downloaded.

    Raises Unavailable where the hub's client is not installed, and, when it is opened, what the download raises.
    """
    named = [source for source in sources if is_hub(source)]
    if not named:
        return nullcontext(sources)
    try:
        from adaptersoup.client.hub_download import directories
    except ModuleNotFoundError as error:
        if error.name != "huggingface_hub":
            raise
        raise Unavailable(f"{named[0]} needs huggingface_hub: pip install 'adaptersoup[hub]'.") from None
    talk(f"downloading {', '.join(map(str, named))}")
    return directories(sources)
