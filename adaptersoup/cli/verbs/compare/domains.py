"""Texts of `soup compare`: samples of each domain to cook for, and test texts."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import typer

from adaptersoup.client.samples import ENDINGS, find_texts, read_texts
from registry.errors import NotFound
from registry.spec import Passage

SAMPLES, TESTS = ("sample", "valid"), ("test",)
"""Names of the files in a domain's folder, without their endings."""


@dataclass(frozen=True)
class Draw:
    """One sample of a domain, and the texts that score the models cooked for it."""

    domain: str
    number: int
    sample: Sequence[Passage]
    test: Sequence[Passage]
    of_several: bool

    @property
    def title(self) -> str:
        """The domain, with the draw's number if there are several draws."""
        return f"{self.domain}, draw {self.number}" if self.of_several else self.domain


def draws_of(
    folders: Sequence[Path], sample: Path | None, test: Path | None, number: int, size: int | None
) -> list[Draw]:
    """Every draw of every domain, with all files read; raises a usage error, NotFound or InvalidSample.

    A domain is called by the name of its folder, or by the path as given if several folders have that name.
    """
    if (sample is None) != (test is None) or (sample is None) == (not folders):
        raise typer.BadParameter("Give --sample and --test, or folders of domains that hold both.")
    if number > 1 and size is None:
        raise typer.BadParameter("--draws needs --size, the number of passages in each draw.")
    if sample is not None and test is not None:
        return list(_draws(sample.name.partition(".")[0] or "sample", sample, test, number, size))
    names = [folder.resolve().name for folder in folders]
    domains = [name if names.count(name) == 1 else str(path) for name, path in zip(names, folders, strict=True)]
    files = [(_file(folder, SAMPLES), _file(folder, TESTS)) for folder in folders]
    return [
        draw
        for domain, (sample, test) in zip(domains, files, strict=True)
        for draw in _draws(domain, sample, test, number, size)
    ]


def _draws(domain: str, sample: Path, test: Path, number: int, size: int | None) -> Iterator[Draw]:
    passages, test_passages = read_texts(sample), read_texts(test)
    if number > 1 and size is not None and size >= len(passages):
        raise typer.BadParameter(
            f"{sample} has {len(passages)} passages, so each draw of --size {size} would be the same: choose "
            "a smaller --size, or one draw."
        )
    for index in range(number):
        drawn: Sequence[Passage] = passages
        if size is not None and size < len(passages):
            generator = random.Random(f"{domain}-{index}")  # noqa: S311 - a sample, no secret
            drawn = [passages[i] for i in sorted(generator.sample(range(len(passages)), size))]
        yield Draw(domain, index, drawn, test_passages, of_several=number > 1)


def _file(folder: Path, names: Sequence[str]) -> Path:
    """The file of texts, or folder of them, with one of these names in a domain's folder; raises NotFound."""
    file = find_texts(folder, names)
    if file is None:
        raise NotFound(f"{folder} has no {' or '.join(names)} ({', '.join(ENDINGS)}).", param="sample")
    return file
