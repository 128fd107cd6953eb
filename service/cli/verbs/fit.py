"""`soup fit`: learns which text belongs to which adapter of a pool."""

from __future__ import annotations

from typing import Annotated

import typer

from registry.spec import GmmSpec
from service.cli.flags import Given
from service.cli.output import fields, progress_bar
from service.cli.remote import Remote, verb
from service.cli.selection_flags import POOL, SELECTION, pool_of, selector_of


@verb
def fit(
    remote: Remote,
    given: Annotated[Given, SELECTION.only("selector", "paper", "encoder", "set", *POOL)],
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until it is fitted.")] = True,
) -> None:
    """Fit a selector over a pool of adapters.

    Not needed before cooking, which fits on first use; it shows how well domains are told apart.

    \b
    Examples:
      soup fit
      soup fit --paper
      soup fit --selector cosine --encoder base --pool-tag v2
      soup fit --selector gmm --set covariance=diag --set dimensions=16
    """
    selector, pool = selector_of(given) or GmmSpec(), pool_of(given)
    with progress_bar("fitting") as report:
        fitted = remote.client.fit(selector, pool=pool, wait=wait, progress=report)
    if fitted.get("object") == "job":
        said = f"Fitting goes on as a job: `soup jobs watch {fitted['id']}`."
    else:
        said = fields(list(({"domains": fitted.get("domains")} | (fitted.get("report") or {})).items()))
    remote.answer(fitted, fitted["id"], said=said)
