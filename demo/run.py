"""The main job from beginning to end; `python -m demo` comes here.

A base model and adapters are made ready (what is there is kept), a server is started on loopback, everything goes to
it over HTTP, and what comes back becomes a sentence, a picture and a table. Whatever happens, the server is stopped.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from demo import shown, table
from demo.cells import Cell, Cells
from demo.job import NOVEL_SAMPLE, Job
from demo.prepare import Options, prepare
from demo.progress import Talk
from demo.server import DemoFailed, Server, running
from demo.strategies import FITS, NAMESPACE, SERVICE, Answer, cook
from demo.table import Entry, Row, Table
from registry.base_model import shape_of
from service.client.client import SoupClient

STAGES = 6


@dataclass
class Kitchen:
    """A run with its server: the client, what was pushed (by name), and every cell scored so far."""

    job: Job
    client: SoupClient
    cells: Cells
    base_digest: str
    pushed: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def base_ref(self) -> str:
        """The base model, as a ref."""
        return f"base/{self.job.base.id}"

    def ref(self, name: str) -> str:
        """The pinned ref of a pushed adapter."""
        return str(self.pushed[name]["ref"])

    def cell(self, texts: Sequence[str], model: str, digest: str | None) -> Cell:
        """A model's score on a domain; `digest` None is the base model."""
        return self.cells.get(digest or self.base_digest, texts, lambda: self.client.perplexity(model, texts))


def run(options: Options) -> None:
    """The whole demo; raises DemoFailed or a SoupError with a sentence for people."""
    talk = Talk(STAGES)
    job = prepare(options, talk)
    began = time.monotonic()
    job.write_bases()
    talk.stage("the server, on loopback")
    with (
        running(job.bases, job.home / "server", database_url=options.database_url) as server,
        server.client() as client,
    ):
        talk.line(f"{server.url}  (data {server.data}, log {server.data.with_suffix('.log')})")
        fingerprint = shape_of(job.base, job.home / "cache").fingerprint
        kitchen = Kitchen(job, client, Cells(job.home / f"cells-{job.base.dtype}.jsonl"), fingerprint)
        _push(kitchen, server, talk)
        answers, chosen_s = _cook(kitchen, talk)
        found = _score(kitchen, answers, talk)
        shown.outcome(job, found, seconds=chosen_s)
        domain, model, whose = shown.soup_to_show(found, answers)
        shown.continuation(job, server, domain=domain, models=(kitchen.base_ref, model), whose=whose)
        shown.chat(kitchen.client, model)
    shown.what_next(job, talk.seconds, database=options.database_url is not None)
    if options.out is not None:
        shown.write_figures(job, found, options, seconds=time.monotonic() - began, kept=kitchen.cells.kept)


# --- push, fit, cook -------------------------------------------------------------------------------------


def _push(kitchen: Kitchen, server: Server, talk: Talk) -> None:
    """Push every adapter with the command line, wait for the samples to be embedded, fit every selector."""
    job, client = kitchen.job, kitchen.client
    talk.stage(f"push: {len(job.pushed)} adapters over HTTP, and fit the selectors")
    folders = [str(job.adapters / name) for name in job.pushed]
    talk.line(f"$ soup push {job.adapters}/* --namespace {NAMESPACE} --wait")
    server.soup("push", *folders, "--namespace", NAMESPACE, "--wait")
    with talk.bar("embedding samples") as told:
        kitchen.pushed.update(_embedded(kitchen, told))
    for adapter in client.adapters(kind="adapter", base_model=job.base.id):
        if adapter["namespace"] == NAMESPACE and adapter["name"] not in job.pushed:
            client.delete_adapter(adapter["ref"])  # of an earlier run with other domains
    for fit in FITS:
        talk.line(f"$ soup fit {' '.join(fit)}")
        server.soup("fit", *fit)


def _embedded(kitchen: Kitchen, told: Any) -> dict[str, dict[str, Any]]:
    """Every pushed adapter, once its sample is embedded (it may still be, where an earlier run was interrupted)."""
    names = kitchen.job.pushed
    found: dict[str, dict[str, Any]] = {}
    while len(found) < len(names):
        for name in names:
            adapter = kitchen.client.adapter(f"{NAMESPACE}/{name}")
            if adapter["sample_state"] == "failed":
                raise DemoFailed(f"The sample of {adapter['ref']} could not be embedded; the server's log says why.")
            if adapter["sample_state"] == "pending":
                time.sleep(0.5)
            else:
                found[name] = adapter
        told(len(found), len(names), "")
    return found


def _cook(kitchen: Kitchen, talk: Talk) -> tuple[dict[str, dict[str, Answer]], float]:
    """The answer of every strategy, by strategy and domain, and the seconds that the service's own took."""
    job = kitchen.job
    count = len(job.strategies)
    talk.stage(f"cook: {count} strategies for each novel domain ({len(job.novel)}), on {NOVEL_SAMPLE} passages")
    answers: dict[str, dict[str, Answer]] = {strategy.name: {} for strategy in job.strategies}
    seconds = 0.0
    with talk.bar("cooking") as told:
        for number, domain in enumerate(job.novel):
            sample = job.sample(domain)
            for place, strategy in enumerate(job.strategies):
                told(number * count + place, len(job.novel) * count, f"{domain}: {strategy.name}")
                began = time.monotonic()
                answers[strategy.name][domain] = cook(kitchen.client, strategy, sample)
                seconds += time.monotonic() - began if strategy == SERVICE else 0.0
    return answers, seconds


# --- score -----------------------------------------------------------------------------------------------


def _score(kitchen: Kitchen, answers: dict[str, dict[str, Answer]], talk: Talk) -> Table:
    """Score every model that any row needs, once, and make the table."""
    job = kitchen.job
    talk.stage("score: perplexity on the test passages of each novel domain")
    base: dict[str, Entry] = {}
    control: dict[str, Entry] = {}
    singles: dict[str, dict[str, Cell]] = {}
    cooked: dict[str, dict[str, Entry]] = {key: {} for key in answers}
    others = job.training if job.oracle else ()
    steps = len(job.novel) * (1 + bool(job.control) + len(others) + len(answers))
    done = 0
    with talk.bar("scoring") as told:
        for domain in job.novel:
            texts = job.test(domain)

            def score(model: str, digest: str | None, domain: str = domain, texts: Sequence[str] = texts) -> Cell:
                nonlocal done
                told(done, steps, f"{domain}: {model}")
                done += 1
                return kitchen.cell(texts, model, digest)

            def single(name: str) -> Cell:
                return score(kitchen.ref(name), str(kitchen.pushed[name]["digest"]))

            base[domain] = Entry(score(kitchen.base_ref, None), kitchen.base_ref)
            if job.control:
                control[domain] = Entry(single(job.control), kitchen.ref(job.control))
            if others:
                singles[domain] = {name: single(name) for name in others}
            for key, by_domain in answers.items():
                answer = by_domain[domain]
                said = answer.reason if answer.abstained else ", ".join(answer.ingredients)
                cell = score(answer.model, answer.digest)
                cooked[key][domain] = Entry(cell, answer.model, said=said, abstained=answer.abstained)
    rows = [Row("base model", base), *([Row(table.CONTROL, control)] if control else [])]
    chosen = [Row(s.name, cooked[s.name]) for s in job.strategies]
    oracle = [table.oracle(singles, {name: kitchen.ref(name) for name in others})] if others else []
    return Table([*rows, *chosen[:-1], *oracle, chosen[-1]], singles)
