"""Sources of `soup push`: adapter directories with their names, added fields and samples.

They come from folders on the command line, or from the rows of a CSV file (`manifest_file`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
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
from registry.spec import Passage
from registry.spec.passage import passage_of


class Samples:
    """The samples of many adapters, in a folder or a file of JSON lines; raises NotFound if the path does not exist."""

    def __init__(self, path: Path) -> None:
        if not path.exists():
            raise NotFound(f"{path} is neither a folder nor a file of samples.", param="sample")
        self.path = path

    def of(self, folder: str, domain: str) -> Sequence[Passage] | None:
        """The texts for an adapter by its folder's name, or else by its domain; None if there are none."""
        names = dict.fromkeys((folder, domain))
        if self.path.is_dir():
            file = find_texts(self.path, filter(_is_plain, names))
            return None if file is None else read_texts(file)
        return next((self._by_domain[name] for name in (domain, folder) if name in self._by_domain), None)

    @cached_property
    def _by_domain(self) -> dict[str, list[Passage]]:
        by_domain: dict[str, list[Passage]] = defaultdict(list)
        for number, value in parse_lines(read_text(self.path), name=self._line, error=_invalid):
            domain, passage = value.get("domain") if isinstance(value, dict) else None, passage_of(value)
            if not isinstance(domain, str) or passage is None:
                raise _invalid(
                    f'{self._line(number)} is not an object with strings "domain" and "text", or "prompt" and "answer" '
                    'instead of "text".'
                )
            by_domain[domain].append(passage)
        return dict(by_domain)

    def _line(self, number: int) -> str:
        return f"{self.path}, line {number},"


def _is_plain(name: str) -> bool:
    """Return True if a name is a single segment of a path; a domain may be any text."""
    return name not in ("", ".", "..") and "/" not in name and "\0" not in name


def _invalid(message: str) -> InvalidSample:
    return InvalidSample(message, param="sample")


@dataclass(frozen=True)
class Source:
    """One adapter to push. `additions` lack the texts of its sample, which are read when it is sent."""

    path: Path
    name: str
    additions: Additions
    sample: Path | None = None
    samples: Samples | None = None
    """Samples to search if `sample` is None."""
    directory: AdapterDirectory | None = field(default=None, compare=False)
    """The directory at `path`, once it is read."""

    @property
    def size(self) -> int:
        """Bytes of the weights."""
        return 0 if self.directory is None else self.directory.weights.stat().st_size

    def texts(self) -> Sequence[Passage] | None:
        """The texts of the sample, None to use the directory's; raises NotFound or InvalidSample."""
        if self.sample is not None:
            return read_texts(self.sample)
        if self.samples is None:
            return None
        directory, folder_name = self.directory, self.path.resolve().name
        domain = self.additions.domain or (directory and directory.domain) or folder_name
        texts = self.samples.of(folder_name, domain)
        if texts is None and not (directory and (directory.sample or directory.embeddings)):
            raise InvalidSample(f"{self.samples.path} has no sample for {self.path} (domain {domain}).", param="sample")
        return texts


def from_folders(
    folders: Sequence[Path], *, namespace: str, name: str | None, additions: Additions, sample: Path | None
) -> list[Source]:
    """A source for each folder, with `name` or the folder's name; raises InvalidName.

    Raises a usage error for two folders of the same name, since neither is meant as a version of the other.
    """
    sources = [Source(path, name or f"{namespace}/{name_of(path)}", additions, sample) for path in folders]
    firsts: dict[str, Path] = {}
    for source in sources:
        split_name(source.name)
        first = firsts.setdefault(source.name, source.path)
        if first is not source.path:
            raise typer.BadParameter(
                f"{same_name(first, source.path, source.name)}, or name them in a CSV (--manifest)."
            )
    return sources


def same_name(first: Path, second: Path, name: str) -> str:
    """The sentence about two folders that would be versions of one name."""
    return f"{first} and {second} would both be {name}, after their folders: give one of them another name"


def cannot_be_read(path: Path, error: OSError) -> SoupError:
    """The error for a directory, or its sample, that the operating system cannot read."""
    return NotFound(f"{error.filename or path} cannot be read: {error.strerror or error}.", param="path")


def read_source(source: Source, *, domain_from_folder: bool) -> Source:
    """The source with its directory read and checked; raises SoupError if it cannot be pushed.

    With `domain_from_folder` the folder's name is the domain of a directory that names none.
    """
    try:
        directory = read_directory(source.path)
        directory.weights.stat()
    except OSError as error:
        raise cannot_be_read(source.path, error) from error
    additions = source.additions
    if domain_from_folder and additions.domain is None and directory.domain is None:
        additions = replace(additions, domain=source.path.resolve().name)
    return replace(source, additions=additions, directory=directory)


def local_folders(sources: Sequence[Path]) -> AbstractContextManager[tuple[Sequence[Path], Mapping[Path, SoupError]]]:
    """Local directories for the sources until `with` ends: those named `hub:OWNER/NAME[@revision]` are downloaded.

    The errors of failed downloads are returned by directory. Raises Unavailable if the hub's client is not installed,
    and on entry InvalidName for a source that names no repository.
    """
    on_hub = [source for source in sources if is_hub(source)]
    if not on_hub:
        return nullcontext((sources, {}))
    try:
        from adaptersoup.client.hub_download import directories
    except ModuleNotFoundError as error:
        if error.name != "huggingface_hub":
            raise
        raise Unavailable(f"{on_hub[0]} needs huggingface_hub: pip install 'adaptersoup[hub]'.") from None
    talk(f"downloading {', '.join(map(str, on_hub))}")
    return directories(sources)
