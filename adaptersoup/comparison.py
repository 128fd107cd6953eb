"""A comparison of ways to choose and mix, on samples of domains and other text of theirs; `Store.compare` makes it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict

from adaptersoup.requests import checked
from adaptersoup.synchronous.client import Client
from adaptersoup.values import Cell, Perplexity, Shown, Soup, Table
from registry.errors import InvalidParameter, NotFound
from registry.names import temporary_name
from registry.progress import Progress

if TYPE_CHECKING:
    from plots.style import Plot


class Compared(BaseModel):
    """What one strategy came to for the sample of one domain, scored on other text of it beside the base model.

    `difference` is mean NLL per token, the model minus the base; `interval` its 90 % interval, None for one text.
    """

    model_config = ConfigDict(frozen=True)

    domain: str
    strategy: str
    model: str
    abstained: bool
    reason: str
    ingredients: tuple[str, ...]
    """Domains of the chosen adapters, in order of rank; none for a recipe by hand."""
    perplexity: float
    difference: float
    standard_error: float
    interval: tuple[float, float] | None


class Comparison(Shown):
    """Strategies by domains."""

    def __init__(self, rows: Sequence[Compared]) -> None:
        self.rows = tuple(rows)

    def __iter__(self) -> Iterator[Compared]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def domains(self) -> list[str]:
        """The domains, in the order they were given."""
        return list(dict.fromkeys(row.domain for row in self.rows))

    @property
    def means(self) -> dict[str, float]:
        """Each strategy's mean difference over the domains, each domain counting once; the best first."""
        named = dict.fromkeys(row.strategy for row in self.rows)
        found = {name: [row.difference for row in self.rows if row.strategy == name] for name in named}
        means = {name: sum(values) / len(values) for name, values in found.items()}
        return dict(sorted(means.items(), key=lambda one: one[1]))

    @property
    def table(self) -> Table:
        """A row for each strategy of each domain."""
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
        head = ("domain", "strategy", "perplexity", "difference", "standard error", "model", "ingredients")
        said = ", ".join(f"{name} {value:+.4f}" for name, value in self.means.items())
        return Table(
            head, tuple(rows), (f"Mean over {len(self.domains)} domains, nats a token against the base: {said}.",)
        )

    def plot(self) -> Plot:
        """Strategies by domains as a heat map; of one domain the differences with their intervals."""
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
    domains: Mapping[str, tuple[Sequence[str], Sequence[str]]],
    strategies: Mapping[str, Mapping[str, Any]],
    *,
    base: str,
    progress: Progress,
) -> Comparison:
    """Cook with every strategy for every domain's sample and score on its other text; see `Store.compare`."""
    if not domains or not strategies:
        raise InvalidParameter("Give at least one domain and one strategy to compare.", param="domains")
    texts = {name: (checked(sample), checked(test)) for name, (sample, test) in domains.items()}
    found: list[Compared] = []
    steps = len(domains) * len(strategies)
    for domain, (sample, test) in texts.items():
        for strategy, how in strategies.items():
            progress(len(found), steps, f"{domain}: {strategy}")
            found.append(_compared(client, domain, strategy, sample, test, how, base))
    progress(steps, steps, "")
    return Comparison(found)


def _compared(
    client: Client,
    domain: str,
    strategy: str,
    sample: Sequence[str],
    test: Sequence[str],
    how: Mapping[str, Any],
    base: str,
) -> Compared:
    def scored(soup: Soup) -> Perplexity:
        return client.evaluate(soup, test, baseline=base)

    soup, score = _temporary(client, sample, how, scored)
    against = score.baseline
    assert against is not None
    chosen = () if soup.selection is None or soup.abstained else soup.selection.selected
    return Compared(
        domain=domain,
        strategy=strategy,
        model=soup.model,
        abstained=soup.abstained,
        reason=soup.reason,
        ingredients=tuple(one.domain for one in chosen),
        perplexity=score.perplexity,
        difference=against.difference,
        standard_error=against.standard_error,
        interval=against.interval,
    )


def _temporary(
    client: Client, sample: Sequence[str], how: Mapping[str, Any], use: Callable[[Soup], Perplexity]
) -> tuple[Soup, Perplexity]:
    """Use a soup under a name of its own, so that it is nobody else's, and retire it however that ends."""
    name = temporary_name()
    try:
        soup = client.cook(sample, name=name, **how)
        return soup, use(soup)
    finally:
        for row in client.adapters(name=name):
            with suppress(NotFound):
                client.delete_adapter(row.ref)
