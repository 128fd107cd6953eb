"""The main job from beginning to end; `python -m demo` comes here.

Text and adapters are made or converted (what is there is kept), a server is started on loopback, everything goes to
it over HTTP, and what comes back becomes a table. Whatever happens, the server is stopped.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from demo import packages, table
from demo.adapters import convert_all, train_all
from demo.base import BASE_ID, SHIPPED
from demo.cells import Cell, Cells
from demo.convert import neutral_domains
from demo.job import HOME, NAMESPACE, NOVEL_SAMPLE, TEST_PASSAGES, Job, external_job
from demo.progress import Talk
from demo.results import Figure, write
from demo.server import DemoFailed, Server, running
from demo.strategies import CLUSTERING, FITS, SERVICE, STRATEGIES, UNIFORM, Answer, cook
from demo.table import Entry, Row, Table
from registry.base_model import shape_of
from registry.spec import BaseEntry
from service.client.client import SoupClient

STAGES = 6
PROMPT_WORDS = 16
CONTINUE = ("--temperature", "0.7", "--top-p", "0.95", "--seed", "1")


@dataclass(frozen=True)
class Options:
    """The options of the command line; without data, base and adapters the text is the installed packages'."""

    data: Path | None = None
    base: Path | None = None
    adapters: Path | None = None
    out: Path | None = None
    command: str = "python -m demo"
    database_url: str | None = None


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
    job = _prepare(options, talk)
    job.write_bases()
    talk.stage("the server, on loopback")
    with (
        running(job.bases, job.home / "server", database_url=options.database_url) as server,
        server.client() as client,
    ):
        talk.line(f"{server.url}  (data {server.data}, log {server.data.with_suffix('.log')})")
        fingerprint = shape_of(job.base, job.home / "cache").fingerprint
        kitchen = Kitchen(job, client, Cells(job.home / "cells.jsonl"), fingerprint)
        _push(kitchen, server, talk)
        answers = _cook(kitchen, talk)
        found = _score(kitchen, answers, talk)
        _print_table(job, found)
        _continuation(kitchen, server, found, answers)
    _finish(job, options, found, talk)


# --- text and adapters -----------------------------------------------------------------------------------


def _prepare(options: Options, talk: Talk) -> Job:
    """The job, its adapters ready to be pushed."""
    if options.data and options.base and options.adapters:
        names = neutral_domains(options.adapters)
        job = external_job(options.data, options.base, options.adapters, names)
        talk.stage(f"adapters: {len(names)} of {options.adapters}, converted")
        convert_all(job, options.adapters, names, talk)
        return job
    talk.stage("text: docstrings of the installed Python packages, one package = one domain")
    job = packages_job()
    with talk.bar("reading") as told:
        packages.write(job.data, told)
    talk.line(f"{len(job.training)} training domains: {', '.join(job.training)}")
    talk.line(f"{len(job.novel)} held back: {', '.join(job.novel)} (seen by neither the base model nor any adapter)")
    talk.stage(f"adapters: {len(job.pushed)} trained on the frozen base model, from one initialisation")
    train_all(job, talk)
    return job


def packages_job() -> Job:
    """The job over the installed packages, on the base model that is shipped."""
    if not (SHIPPED / "model.safetensors").is_file():
        raise DemoFailed(f"{SHIPPED} holds no base model: `python -m demo.base` makes it.")
    home = HOME / "packages"
    entry = BaseEntry(id=BASE_ID, source=str(SHIPPED.resolve()))
    return Job("demo", home, home / "text", entry, packages.TRAINING, packages.NOVEL, packages.CONTROL)


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
                raise DemoFailed(f"The sample of {adapter['ref']} could not be embedded: see `soup jobs ls`.")
            if adapter["sample_state"] == "pending":
                time.sleep(0.5)
            else:
                found[name] = adapter
        told(len(found), len(names), "")
    return found


def _cook(kitchen: Kitchen, talk: Talk) -> dict[str, dict[str, Answer]]:
    """The answer of every strategy, by strategy and domain."""
    job = kitchen.job
    talk.stage(
        f"cook: {len(STRATEGIES)} strategies for each novel domain ({len(job.novel)}), on {NOVEL_SAMPLE} passages"
    )
    digests = {str(adapter["ref"]): str(adapter["digest"]) for adapter in kitchen.pushed.values()}
    answers: dict[str, dict[str, Answer]] = {strategy.name: {} for strategy in STRATEGIES}
    with talk.bar("cooking") as told:
        for number, domain in enumerate(job.novel):
            sample = job.sample(domain)
            for place, strategy in enumerate(STRATEGIES):
                told(number * len(STRATEGIES) + place, len(job.novel) * len(STRATEGIES), f"{domain}: {strategy.name}")
                answers[strategy.name][domain] = cook(kitchen.client, strategy, sample, digests)
    return answers


# --- score -----------------------------------------------------------------------------------------------


def _score(kitchen: Kitchen, answers: dict[str, dict[str, Answer]], talk: Talk) -> Table:
    """Score every model that any row needs, once, and make the table."""
    job = kitchen.job
    talk.stage(f"score: perplexity on up to {TEST_PASSAGES} test passages of each novel domain")
    base: dict[str, Entry] = {}
    control: dict[str, Entry] = {}
    singles: dict[str, dict[str, Cell]] = {}
    cooked: dict[str, dict[str, Entry]] = {key: {} for key in answers}
    steps = len(job.novel) * (len(job.pushed) + 1 + len(STRATEGIES))
    done = 0
    with talk.bar("scoring") as told:
        for domain in job.novel:
            texts = job.test(domain)

            def score(model: str, digest: str | None, domain: str = domain, texts: Sequence[str] = texts) -> Cell:
                nonlocal done
                told(done, steps, f"{domain}: {model}")
                done += 1
                return kitchen.cell(texts, model, digest)

            base[domain] = Entry(score(kitchen.base_ref, None), kitchen.base_ref)
            found = {name: score(kitchen.ref(name), str(kitchen.pushed[name]["digest"])) for name in job.pushed}
            if job.control:
                control[domain] = Entry(found.pop(job.control), kitchen.ref(job.control))
            singles[domain] = found
            for key, by_domain in answers.items():
                answer = by_domain[domain]
                said = answer.reason if answer.abstained else ", ".join(answer.ingredients)
                cell = score(answer.model, answer.digest)
                cooked[key][domain] = Entry(cell, answer.model, said=said, abstained=answer.abstained)
    rows = [Row("base model", base), *([Row("control (mixed text)", control)] if control else [])]
    chosen = [Row(s.name, cooked[s.name]) for s in STRATEGIES]
    refs = {name: kitchen.ref(name) for name in job.training}
    return Table([*rows, *chosen[:-1], table.oracle(singles, refs), chosen[-1]], singles)


# --- what people see -------------------------------------------------------------------------------------


def _print_table(job: Job, found: Table) -> None:
    tokens = {domain: entry.cell.tokens for domain, entry in found.base.entries.items()}
    print(f"\n{len(job.training)} adapters, {len(job.novel)} novel domains; base model {job.base.id}\n")
    print(table.text(found, width=shutil.get_terminal_size((118, 40)).columns))
    print(
        f"\nTest passages and tokens: {', '.join(f'{d} {len(each)} / {sum(each):,}' for d, each in tokens.items())}."
        f"\nBeside each perplexity: mean NLL per token minus the base's, ± its paired standard error over passages (a"
        f"\nlower bound: passages of one document are not independent). Negative is better than the base.\n",
        flush=True,
    )


def _continuation(kitchen: Kitchen, server: Server, found: Table, answers: dict[str, dict[str, Answer]]) -> None:
    """One prompt continued by the base and by a soup: the service's answer where it has one, else the default's."""
    domain, model, whose = _soup_to_show(found, answers)
    prompt = " ".join(kitchen.job.test(domain)[0].split()[:PROMPT_WORDS])
    print(f"A prompt of {domain}, continued by the base and by {whose}:")
    print(f"  {prompt} ...")
    tokens = str(min(60, shape_of(kitchen.job.base, kitchen.job.home / "cache").context // 4))
    for ref in (kitchen.base_ref, model):
        said = server.soup("generate", ref, prompt, "--max-tokens", tokens, *CONTINUE).strip()
        print(f"\n  $ soup generate {ref} ...\n    " + said.replace("\n", "\n    "))


def _soup_to_show(found: Table, answers: dict[str, dict[str, Answer]]) -> tuple[str, str, str]:
    """(domain, model, words for it): a soup of several adapters, where its difference to the base is best."""
    by_name = {row.name: row for row in found.rows}
    for name, whose in (
        (SERVICE, "the soup that the service answers"),
        (CLUSTERING, "the soup by clustering (the service, verifying it, answers with something else)"),
        (UNIFORM, "the uniform soup"),
    ):
        taken = [d for d, answer in answers[name].items() if not answer.abstained and len(answer.ingredients) > 1]
        if taken:
            best = min(taken, key=lambda domain: found.difference(by_name[name], domain).difference)
            return best, answers[name][best].model, whose
    return found.domains[0], answers[UNIFORM][found.domains[0]].model, "the uniform soup"  # of one adapter


def _finish(job: Job, options: Options, found: Table, talk: Talk) -> None:
    seconds = talk.seconds
    print(f"""
What to do next ({Path(sys.executable).parent} holds the commands)
  soup serve --bases {job.bases} --data {job.home / "server"}
      the same server again, with every adapter and soup in it; it prints its address, and /docs there is the HTTP API
  SOUP_DATA={job.home / "server"} soup ls --url ADDRESS
      what is in it, with the key that the server wrote there; so for all commands below
  soup cook --sample your-passages.jsonl
      a soup for text of your own (about 100 passages, one {{"text": ...}} a line)
  soup train --help
      an adapter of your own
It took {seconds:.0f} seconds. Everything it made is in {job.home}, and the next run uses it again.""")
    if options.out is not None:
        figures = table.figures(found)
        goal = 240.0 if job.name == "demo" else 1800.0
        figures["wall_s"] = Figure(seconds, "s", goal, [seconds], "at most; installation not included").as_json()
        write(options.out, name=job.name, command=options.command, figures=figures, rows=table.rows(found))
        print(f"Figures: {options.out}")
