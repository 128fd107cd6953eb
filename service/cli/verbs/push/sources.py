"""What `soup push` pushes: a directory, the name it gets, and what is said of it beside what stands in it.

Sources come from folders on the command line, or from the rows of a CSV file (`manifest_file`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from registry.errors import InvalidSample, SoupError
from registry.formats import AdapterDirectory, read_directory
from registry.names import split_name
from service.cli.verbs.push.dataset import Samples
from service.client.samples import read_texts
from service.client.transfer import Additions, name_of


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
    """A source of each folder, named after it unless there is a name; raises InvalidName."""
    found = [Source(path, name or f"{namespace}/{name_of(path)}", more, sample) for path in folders]
    for source in found:
        split_name(source.name)
    return found


def read_source(source: Source, *, own_domain: bool) -> Source | SoupError:
    """The source with its directory read and checked, or why it cannot be pushed.

    With `own_domain` a directory that names no domain is of the one it is called after.
    """
    try:
        read = read_directory(source.path)
    except SoupError as error:
        return error
    more = source.more
    if own_domain and more.domain is None and read.domain is None:
        more = Additions(**{**vars(more), "domain": source.path.resolve().name})
    return Source(source.path, source.name, more, source.sample, source.samples, read)
