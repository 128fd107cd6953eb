"""A comparison of cooking strategies over several domains; `Store.compare` makes it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict

from adaptersoup.requests import Text, check_texts
from adaptersoup.synchronous.client import Client
from adaptersoup.values import Cell, Perplexity, Soup, Table, Tabular
from registry.errors import InvalidParameter, NotFound, SoupError
from registry.names import temporary_name
from registry.progress import Progress

if TYPE_CHECKING:
    from plots.style import Plot


class Compared(BaseModel):
    """The result of one strategy for one domain's sample, scored on other text of the domain beside the base model.

    `difference` is in mean NLL per token, the model minus the base; `interval` its 90 % interval, None for one text.
    """

    model_config = ConfigDict(frozen=True)

    domain: str
    strategy: str
    model: str
    abstained: bool
    reason: str
    ingredients: tuple[str, ...]
    """Domains of the chosen adapters, in order of rank; empty for a recipe by hand."""
    perplexity: float
    difference: float
    standard_error: float
    interval: tuple[float, float] | None


class Comparison(Tabular, tuple[Compared, ...]):
    """The results of several strategies on several domains, one row a pair."""

    @property
    def rows(self) -> tuple[Compared, ...]:
        """The results."""
        return self

    @property
    def domains(self) -> list[str]:
        """The domains, in the order of the request."""
        return list(dict.fromkeys(row.domain for row in self.rows))

    @property
    def means(self) -> dict[str, float]:
        """Each strategy's mean difference over the domains, the best first."""
        differences: dict[str, list[float]] = {}
        for row in self.rows:
            differences.setdefault(row.strategy, []).append(row.difference)
        means = {name: sum(values) / len(values) for name, values in differences.items()}
        return dict(sorted(means.items(), key=lambda item: item[1]))

    @property
    def table(self) -> Table:
        """One row a strategy and domain; the sentence gives the means."""
        rows: list[tuple[Cell, ...]] = [
            (
                row.domain,
                row.strategy,
                row.perplexity,
                row.difference,
                row.standard_error,
                "abstained: the base" if row.abstained else row.model,
                ", ".join(row.ingredients),
            )
            for row in self.rows
        ]
        header = ("domain", "strategy", "perplexity", "difference", "standard error", "model", "ingredients")
        means = ", ".join(f"{name} {value:+.4f}" for name, value in self.means.items())
        subject = f"Mean over {len(self.domains)} domains" if len(self.domains) > 1 else "One domain"
        return Table(header, tuple(rows), (f"{subject}, nats a token against the base: {means}.",))

    def plot(self) -> Plot:
        """A heat map of strategies by domains; for a single domain, bars of the differences with their intervals."""
        from plots.charts import Interval, Panel, panels
        from plots.results import AGAINST_BASE, strategies_plot

        if len(self.domains) == 1:
            rows = [
                Interval(
                    row.strategy, row.difference, *(row.interval or (row.difference,) * 2), chosen=not row.abstained
                )
                for row in self.rows
            ]
            return panels(self.domains[0], [], [Panel(f"{AGAINST_BASE}; filled: it did not abstain", rows)])
        values = {(row.strategy, row.domain): -row.difference for row in self.rows}
        return strategies_plot(list(self.means), self.domains, values)


def compare(
    client: Client,
    domains: Mapping[str, tuple[Sequence[Text], Sequence[Text]]],
    strategies: Mapping[str, Mapping[str, Any]],
    *,
    progress: Progress,
) -> Comparison:
    """Cook with every strategy for every domain's sample, and score on its other text; see `Store.compare`."""
    if not domains or not strategies:
        raise InvalidParameter("Give at least one domain and one strategy to compare.", param="domains")
    texts = {name: (check_texts(sample), check_texts(test)) for name, (sample, test) in domains.items()}
    rows: list[Compared] = []
    steps = len(domains) * len(strategies)
    for domain, (sample, test) in texts.items():
        for strategy, options in strategies.items():
            progress(len(rows), steps, f"{domain}: {strategy}")
            with _temporary_soup(client, sample, options) as soup:
                base = soup.model if soup.soup is None else f"base/{soup.soup.base_model}"
                rows.append(_compared(domain, strategy, soup, client.evaluate(soup, test, baseline=base)))
    progress(steps, steps, "")
    return Comparison(rows)


def _compared(domain: str, strategy: str, soup: Soup, score: Perplexity) -> Compared:
    baseline = score.baseline
    assert baseline is not None
    chosen = () if soup.selection is None or soup.abstained else soup.selection.selected
    return Compared(
        domain=domain,
        strategy=strategy,
        model=soup.model,
        abstained=soup.abstained,
        reason=soup.reason,
        ingredients=tuple(row.domain for row in chosen),
        perplexity=score.perplexity,
        difference=baseline.difference,
        standard_error=baseline.standard_error,
        interval=baseline.interval,
    )


@contextmanager
def _temporary_soup(client: Client, sample: Sequence[Text], options: Mapping[str, Any]) -> Iterator[Soup]:
    """Cook a soup under a temporary name and retire it on exit, also after an error.

    The name keeps it apart from an equal soup that somebody else may have.
    """
    name = temporary_name()
    begun = client.begin_cook(sample, name=name, **options)
    try:
        yield begun if isinstance(begun, Soup) else client.soup_of(begun)
    except BaseException:
        if not isinstance(begun, Soup):
            with suppress(SoupError):
                client.wait_job(client.cancel_job(begun))
        raise
    finally:
        for row in client.adapters(name=name):
            with suppress(NotFound):
                client.delete_adapter(row.ref)
