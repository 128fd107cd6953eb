"""A picture that shows itself in a notebook, and is saved as a file."""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

from registry.errors import InvalidParameter


@dataclass(frozen=True)
class Picture:
    """A picture as SVG, whole; it follows the reader's light or dark scheme, and needs nothing from elsewhere."""

    title: str
    svg: str = field(repr=False)

    def save(self, path: Path | str) -> None:
        """Write it to a file, in the place of what is there; raises InvalidParameter where that cannot be written."""
        try:
            Path(path).write_text(self.svg, encoding="utf-8")
        except OSError as error:
            raise InvalidParameter(f"{path} cannot be written: {error.strerror}.", param="plot") from None

    def _repr_html_(self) -> str:
        """For notebooks: an image, so that its style is its own and not the page's."""
        data = base64.b64encode(self.svg.encode()).decode()
        return f'<img alt="{escape(self.title)}" src="data:image/svg+xml;base64,{data}">'

    def _repr_svg_(self) -> str:
        """For other programs that show results."""
        return self.svg
