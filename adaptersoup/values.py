"""Results of the typed clients and of a `Store`, shown as text, as a table in a notebook, as a data frame or as a plot.

Each is the body of the HTTP API of the same name, with its fields (docs/reference/api.md), and a `table` of its main
figures.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

from adaptersoup.tables import cell_text, columns, one_line
from registry.errors import Unavailable
from service.http.schemas.adapters import Adapter as AdapterBody
from service.http.schemas.adapters import ListedAdapter
from service.http.schemas.perplexity import PerplexityAnswer
from service.http.schemas.selectors import Selected
from service.http.schemas.selectors import Selector as SelectorBody
from service.http.schemas.soups import Soup as SoupBody

if TYPE_CHECKING:
    import pandas as pd

    from plots.style import Plot

Cell = str | int | float | None


@dataclass(frozen=True)
class Table:
    """Rows under named columns, with sentences above them."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    sentences: tuple[str, ...] = ()

    def text(self) -> str:
        """Aligned columns for a terminal; control characters of foreign text are shown as `?`."""
        table = [columns(self.columns, self.rows)] if self.rows else []
        return "\n".join([*map(one_line, self.sentences), *table])

    def html(self) -> str:
        """HTML paragraphs and a table, with foreign text escaped."""
        above = "".join(f"<p>{escape(sentence)}</p>" for sentence in self.sentences)
        if not self.rows:
            return above
        head = "".join(f'<th scope="col">{escape(name)}</th>' for name in self.columns)
        body = "".join(
            f"<tr>{''.join(f'<td>{escape(_html_text(cell))}</td>' for cell in row)}</tr>" for row in self.rows
        )
        return f"{above}<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _html_text(cell: object) -> str:
    """The text of a cell, with four significant digits of a number: a page is wider than a terminal."""
    return f"{cell:.4g}" if isinstance(cell, float) else cell_text(cell)


class Tabular(ABC):
    """A value that shows itself by its `table`."""

    @property
    @abstractmethod
    def table(self) -> Table:
        """The main figures, one row an item."""

    def __str__(self) -> str:
        return self.table.text()

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:  # noqa: ARG002 - IPython's protocol
        """Print the table in IPython on a terminal."""
        printer.text(str(self))

    def _repr_html_(self) -> str:
        """The table as HTML, for notebooks."""
        return self.table.html()

    def to_frame(self) -> pd.DataFrame:
        """A data frame with the rows of `table`; raises Unavailable if pandas is not installed."""
        try:
            import pandas as pd
        except ModuleNotFoundError:
            raise Unavailable("Data frames need pandas: pip install 'adaptersoup[frames]'.") from None
        return pd.DataFrame(list(self.table.rows), columns=list(self.table.columns))


class Listed(Tabular, ListedAdapter):
    """A stored adapter or soup, with the fields that lists have."""

    @property
    def table(self) -> Table:
        """One row, as in a list of adapters."""
        return _adapter_table([self])


class Adapter(Listed, AdapterBody):
    """A stored adapter or soup, with its provenance."""


class Adapters(Tabular, tuple[Listed, ...]):
    """A list of adapters, newest first."""

    @property
    def table(self) -> Table:
        """One row an adapter."""
        return _adapter_table(self)


class Selector(Tabular, SelectorBody):
    """A fitted selector, and how well it tells the domains of its pool apart."""

    @property
    def table(self) -> Table:
        """The figures of its fit report, measured on text that it was not fitted on."""
        rows = (
            (name.replace("_", " "), value) for name, value in self.report.items() if isinstance(value, int | float)
        )
        return Table(("figure", "value"), tuple(rows), (f"{self.selector.kind} over {self.domains} domains",))

    def plot(self) -> Plot:
        """A chart of the fit report: shares on held-out text, and counts by domain or cluster."""
        from plots.results import fit_plot

        return fit_plot(self.selector.kind, self.domains, self.report)


class Selection(Tabular, Selected):
    """The adapters that a selector chooses for a sample, with scores, weights and reasons."""

    @property
    def table(self) -> Table:
        """The chosen adapters, then the rejected ones with the reason."""
        selection = self.selection
        chosen = [
            (row.ref, row.domain, row.score, float(row.weight), row.stability, None) for row in selection.selected
        ]
        rejected = [(row.ref, row.domain, row.score, None, None, row.reason) for row in selection.left_out]
        header = ("adapter", "domain", "score", "weight", "stability", "why not")
        return Table(header, (*chosen, *rejected), (selection.reason, *selection.warnings))

    def plot(self) -> Plot:
        """A bar chart of the ranking: the chosen adapters, then the rejected ones."""
        from plots.results import selection_plot

        return selection_plot(self.selection)


class Soup(Tabular, SoupBody):
    """The result of a cook: a soup, a single adapter, or the base model if it `abstained`."""

    @property
    def table(self) -> Table:
        """The ingredients with their weights averaged over layers; the sentences give the reason and the evidence."""
        verification, spent = self.verification, self.spent
        sentences = [f"{self.model}: {self.reason}" if self.reason else self.model]
        if verification is not None:
            passages = "held-out passages" if verification.held_out else "passages of the sample itself"
            sentences.append(
                f"{verification.difference:+.4f} nats a token against the base (standard error "
                f"{verification.standard_error:.4f}) on {verification.passages} {passages}."
            )
        if spent is not None and spent.passes is not None:
            work = f"as much as {spent.passes:.1f} passes of the base model over the sample"
            sentences.append(f"It took {spent.seconds:.1f} s, {work}.")
        refs_by_digest = self.refs | {
            row.digest: row.ref for row in (self.selection.selected if self.selection else ())
        }
        if self.search is not None:
            refs_by_digest |= {candidate.digest: candidate.ref for candidate in self.search.candidates}
        ingredients = () if self.recipe is None else self.recipe.ingredients
        rows = [(refs_by_digest.get(row.digest, row.digest), float(row.weight)) for row in ingredients]
        return Table(("ingredient", "weight"), tuple(rows), tuple(sentences))

    def plot(self) -> Plot:
        """A chart of the ingredients, the gain on held-out passages with its interval, and the candidates."""
        from plots.results import soup_plot

        return soup_plot(
            self.model,
            self.reason,
            abstained=self.abstained,
            recipe=self.recipe,
            refs=self.refs,
            selection=self.selection,
            search=self.search,
            verification=self.verification,
        )


class Perplexity(Tabular, PerplexityAnswer):
    """Perplexity of a model on texts, and a baseline's if the request named one."""

    @property
    def table(self) -> Table:
        """The model, then the baseline; the sentence gives the paired difference between them."""
        rows: list[tuple[Cell, ...]] = [(self.model, self.perplexity, self.mean_nll, self.standard_error)]
        sentences: tuple[str, ...] = ()
        if self.baseline is not None:
            rows.append((self.baseline.model, self.baseline.perplexity, self.baseline.mean_nll, None))
            sentences = (
                f"{self.baseline.difference:+.4f} nats a token against {self.baseline.model} (standard error "
                f"{self.baseline.standard_error:.4f}, {len(self.texts)} texts).",
            )
        return Table(("model", "perplexity", "nats a token", "standard error"), tuple(rows), sentences)

    def plot(self) -> Plot:
        """A chart of both perplexities, their difference with its interval, and a histogram over the texts."""
        from plots.results import perplexity_plot

        return perplexity_plot(self.model, self, against=None if self.baseline is None else self.baseline.model)


def _adapter_table(adapters: Iterable[ListedAdapter]) -> Table:
    rows = (
        (row.ref, row.kind, row.domain, row.config.method, row.parameters, ", ".join(row.card.tags), row.owner)
        for row in adapters
    )
    return Table(("adapter", "kind", "domain", "method", "parameters", "tags", "owner"), tuple(rows))
