"""Samples of many adapters in one place: a folder of files called after them, or a file of {"domain", "text"} lines."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

from registry.errors import InvalidSample, NotFound
from registry.files import parse_lines
from service.client.samples import file_called, read_text, read_texts


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
            file = file_called(self.path, filter(_is_plain, names))
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
