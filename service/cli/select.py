"""`soup fit` and `soup select`: learn which text belongs to which adapter, and ask."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from registry.spec import GmmSpec, SelectOptions
from service.cli.choosing import (
    BaseOption,
    EncoderOption,
    KindOption,
    MaxOption,
    PaperOption,
    PoolMethodOption,
    PoolNamespaceOption,
    PoolTagOption,
    SetOption,
    SingleOption,
    TopOption,
    options_of,
    pool_of,
    selector_of,
)
from service.cli.output import as_json, columns, data, fields, progress_bar, talk
from service.cli.session import SampleOption, Session, verb
from service.client.samples import read_texts


@verb
def fit(
    session: Session,
    selector: KindOption = None,
    paper: PaperOption = False,
    encoder: EncoderOption = None,
    parameters: SetOption = None,
    base: BaseOption = None,
    pool_tag: PoolTagOption = None,
    pool_namespace: PoolNamespaceOption = None,
    pool_method: PoolMethodOption = None,
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
    spec = selector_of(selector, paper=paper, encoder=encoder, parameters=parameters) or GmmSpec()
    pool = pool_of(base=base, tag=pool_tag, namespaces=pool_namespace, method=pool_method)
    with progress_bar("fitting") as report:
        fitted = session.client.fit(spec, pool=pool, wait=wait, progress=report)
    if session.json:
        as_json(fitted)
    elif fitted.get("object") == "job":
        data(fitted["id"])
        talk(f"Fitting goes on as a job: `soup jobs watch {fitted['id']}`.")
    else:
        data(fitted["id"])
        talk(fields(list(({"domains": fitted.get("domains")} | (fitted.get("report") or {})).items())))


@verb
def select(
    session: Session,
    sample: SampleOption,
    selector: KindOption = None,
    paper: PaperOption = False,
    encoder: EncoderOption = None,
    parameters: SetOption = None,
    single: SingleOption = False,
    max_ingredients: MaxOption = None,
    top: TopOption = False,
    base: BaseOption = None,
    pool_tag: PoolTagOption = None,
    pool_namespace: PoolNamespaceOption = None,
    pool_method: PoolMethodOption = None,
) -> None:
    """Say which adapters fit a sample, and why; nothing is cooked.

    \b
    Examples:
      soup select --sample contracts.jsonl
      soup select --sample contracts.txt --selector cosine --encoder sbert
      cat contracts.txt | soup select --sample - --paper
    """
    spec = selector_of(selector, paper=paper, encoder=encoder, parameters=parameters)
    options: SelectOptions = options_of(single=single, max_ingredients=max_ingredients, top=top)
    pool = pool_of(base=base, tag=pool_tag, namespaces=pool_namespace, method=pool_method)
    source = session.client.sample(read_texts(sample))
    with progress_bar("selecting") as report:
        answer = session.client.select(source, selector=spec, options=options, pool=pool, progress=report)
    if session.json:
        as_json(answer)
    else:
        data(selection_text(answer["selection"]))
        comment(answer)


def selection_text(selection: dict[str, Any]) -> str:
    """A selection as a table: the chosen with their weights, then what was left out and why."""
    chosen = [(row["ref"], row["domain"], row.get("score"), row["weight"], "") for row in selection["selected"]]
    others = [(row["ref"], row["domain"], row.get("score"), "-", row["reason"]) for row in selection["left_out"]]
    return columns(("adapter", "domain", "score", "weight", "why not"), chosen + others)


def comment(answer: dict[str, Any]) -> None:
    """On stderr: abstention, novelty, thresholds, warnings, and adapters that came too late."""
    selection = answer.get("selection") or {}
    if selection.get("abstained"):
        talk(f"Abstained: {selection.get('reason')}")
    novelty = selection.get("novelty")
    facts = fields([
        ("looked at", f"{selection['units']} units of the sample" if selection.get("units") else None),
        ("novelty", None if novelty is None else f"{novelty:.0f} (percentile among the pool's own domains)"),
        ("counts", selection.get("counts")),
        ("thresholds", selection.get("thresholds")),
        ("selector", answer.get("selector")),
        ("not yet included", answer.get("not_yet_included")),
    ])  # fmt: skip
    notes = [*(selection.get("warnings") or ()), *((answer.get("sample") or {}).get("notes") or ())]
    for text in [facts, *(f"Note: {note}" for note in notes)]:
        if text:
            talk(text)
