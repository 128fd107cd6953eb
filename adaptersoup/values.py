"""What a `Store` answers: typed values that show themselves, as text, as a table in a notebook, as a data frame and,
where there is something to see, as a matplotlib figure.

Each is the body of the HTTP API of the same name, with its fields (docs/reference/api.md), and a `table` of what people
look at first.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any, overload

from adaptersoup.tables import columns, one_line
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
    """Rows under named columns, and sentences above them."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    sentences: tuple[str, ...] = ()

    def text(self) -> str:
        """In columns, for a terminal; what people wrote forges no lines there."""
        table = [columns(self.columns, self.rows)] if self.rows else []
        return "\n".join([*map(one_line, self.sentences), *table])

    def html(self) -> str:
        """As HTML; whatever people wrote is shown as text."""
        above = "".join(f"<p>{escape(sentence)}</p>" for sentence in self.sentences)
        if not self.rows:
            return above
        head = "".join(f'<th scope="col">{escape(name)}</th>' for name in self.columns)
        body = "".join(f"<tr>{''.join(f'<td>{escape(_text(one))}</td>' for one in row)}</tr>" for row in self.rows)
        return f"{above}<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


class Shown(ABC):
    """A value with a `table`."""

    @property
    @abstractmethod
    def table(self) -> Table:
        """What people look at first."""

    def __str__(self) -> str:
        return self.table.text()

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:  # noqa: ARG002 - IPython's protocol
        """For IPython on a terminal."""
        printer.text(str(self))

    def _repr_html_(self) -> str:
        """For notebooks."""
        return self.table.html()

    def to_frame(self) -> pd.DataFrame:
        """The rows of its table as a data frame; raises Unavailable where pandas is not installed."""
        try:
            import pandas as pd
        except ModuleNotFoundError:
            raise Unavailable("Data frames need pandas: pip install 'adaptersoup[frames]'.") from None
        return pd.DataFrame(list(self.table.rows), columns=list(self.table.columns))


class Listed(Shown, ListedAdapter):
    """A stored adapter or soup, as lists have it."""

    @property
    def table(self) -> Table:
        """One row of a list."""
        return _table([self])


class Adapter(Shown, AdapterBody):
    """A stored adapter or soup, with how it came to be."""

    @property
    def table(self) -> Table:
        """One row of a list."""
        return _table([self])


class Adapters(Shown, Sequence[Listed]):
    """A list of adapters, newest first."""

    def __init__(self, found: Sequence[Listed]) -> None:
        self._found = tuple(found)

    @overload
    def __getitem__(self, place: int) -> Listed: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[Listed]: ...
    def __getitem__(self, place: int | slice) -> Listed | Sequence[Listed]:
        return self._found[place]

    def __len__(self) -> int:
        return len(self._found)

    def __iter__(self) -> Iterator[Listed]:
        return iter(self._found)

    @property
    def table(self) -> Table:
        """A row for each."""
        return _table(self._found)


class Selector(Shown, SelectorBody):
    """A fitted selector, and how well it tells the domains of its pool apart."""

    @property
    def table(self) -> Table:
        """The figures of its report, which are found on text that it was not fitted on."""
        rows = ((name.replace("_", " "), one) for name, one in self.report.items() if isinstance(one, int | float))
        return Table(("figure", "value"), tuple(rows), (f"{self.selector.kind} over {self.domains} domains",))

    def plot(self) -> Plot:
        """Shares on held-out text, and what it has by domain or cluster."""
        from plots.results import fit_plot

        return fit_plot(self.selector.kind, self.domains, self.report)


class Selection(Shown, Selected):
    """Which adapters a selector would take for a sample, and why."""

    @property
    def table(self) -> Table:
        """Who was chosen, then who was left out."""
        found = self.selection
        chosen = [(one.ref, one.domain, one.score, float(one.weight), one.stability, None) for one in found.selected]
        others = [(one.ref, one.domain, one.score, None, None, one.reason) for one in found.left_out]
        head = ("adapter", "domain", "score", "weight", "stability", "why not")
        return Table(head, (*chosen, *others), (found.reason, *found.warnings))

    def plot(self) -> Plot:
        """The ranking, as bars: who was chosen, then who was left out."""
        from plots.results import selection_plot

        return selection_plot(self.selection)


class Soup(Shown, SoupBody):
    """What was cooked: a soup, one adapter that needs no mixing, or the base model where it `abstained`."""

    @property
    def table(self) -> Table:
        """Why, on what evidence, and the ingredients with what each weighs, averaged over layers."""
        check, spent = self.verification, self.spent
        sentences = [f"{self.model}: {self.reason}" if self.reason else self.model]
        if check is not None:
            where = "held-out passages" if check.held_out else "passages of the sample itself"
            sentences.append(
                f"{check.difference:+.4f} nats a token against the base (standard error {check.standard_error:.4f}) on "
                f"{check.passages} {where}."
            )
        if spent is not None and spent.passes is not None:
            sentences.append(f"It took {spent.seconds:.1f} s, {spent.passes:.1f} passes of the base over the sample.")
        names = {one.digest: one.ref for one in (self.selection.selected if self.selection else ())}
        if self.search is not None:
            names |= {one.digest: one.ref for one in self.search.candidates}
        ingredients = () if self.recipe is None else self.recipe.ingredients
        rows = tuple((names.get(one.digest, one.digest), float(one.weight)) for one in ingredients)
        return Table(("ingredient", "weight"), rows, tuple(sentences))

    def plot(self) -> Plot:
        """What is in it, what it gains on passages held out with its interval, and the adapters that were weighed."""
        from plots.results import soup_plot

        return soup_plot(
            self.model,
            self.reason,
            abstained=self.abstained,
            recipe=self.recipe,
            selection=self.selection,
            search=self.search,
            verification=self.verification,
        )


class Perplexity(Shown, PerplexityAnswer):
    """Perplexity of a model on texts, beside a baseline's where one was asked for."""

    @property
    def table(self) -> Table:
        """The model, then the baseline, with the paired difference between them."""
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
        """Both perplexities, the difference with its interval, and how many texts are read how well."""
        from plots.results import perplexity_plot

        return perplexity_plot(self.model, self, against=None if self.baseline is None else self.baseline.model)


def _table(adapters: Iterable[ListedAdapter]) -> Table:
    rows = (
        (one.ref, one.kind, one.domain, one.config.method, one.parameters, ", ".join(one.card.tags), one.owner)
        for one in adapters
    )
    return Table(("adapter", "kind", "domain", "method", "parameters", "tags", "owner"), tuple(rows))


def _text(cell: Cell) -> str:
    if cell is None:
        return ""
    return f"{cell:.4g}" if isinstance(cell, float) else str(cell)
