"""The main job from beginning to end, called by `python -m demo`.

Prepares a base model and adapters, unless they exist, and starts a server on loopback. All requests go to it over HTTP.
The results are a sentence, a plot and a table. The server is always stopped at the end.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from adaptersoup.client.client import SoupClient
from demo import picture, table
from demo.job import NOVEL_SAMPLE, Job
from demo.prepare import prepare
from demo.results import Figure, write
from demo.scores import Score, Scores
from demo.server import DemoFailed, Server, running
from demo.strategies import FITS, NAMESPACE, SERVICE, Answer, cook
from demo.table import Entry, Row, Table
from demo.talk import Talk
from registry.base_model import shape_of
from registry.errors import InvalidParameter

STAGES = 6
PROMPT_WORDS = 16
CONTINUE = ("--temperature", "0.7", "--top-p", "0.95", "--seed", "1")
QUESTION = "What is a soup made of? Answer in two sentences."
Answers = Mapping[str, Mapping[str, Answer]]
"""Answers by strategy and domain."""


@dataclass
class Kitchen:
    """A run with its server: the client, the pushed adapters by name, and all scores so far."""

    job: Job
    client: SoupClient
    scores: Scores
    base_digest: str
    pushed: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def base_ref(self) -> str:
        """The base model, as a ref."""
        return f"base/{self.job.base.id}"

    def ref(self, name: str) -> str:
        """The pinned ref of a pushed adapter."""
        return str(self.pushed[name]["ref"])

    def score(self, texts: Sequence[str], model: str, digest: str | None) -> Score:
        """A model's score on a domain; `digest` None is the base model."""
        return self.scores.get(digest or self.base_digest, texts, lambda: self.client.perplexity(model, texts))


def run(options: argparse.Namespace, command: str) -> None:
    """Run the whole demo; raises DemoFailed or a SoupError with a message for the user."""
    talk = Talk(STAGES)
    job = prepare(options.data, options.base, options.adapters, talk)
    began = time.monotonic()
    job.write_bases()
    talk.stage("the server, on loopback")
    with (
        running(job.bases, job.home / "server", database_url=options.database_url) as server,
        server.client() as client,
    ):
        talk.line(f"{server.url}  (data {server.data}, log {server.data.with_suffix('.log')})")
        fingerprint = shape_of(job.base, job.home / "cache").fingerprint
        kitchen = Kitchen(job, client, Scores(job.home / f"scores-{job.base.dtype}"), fingerprint)
        _push(kitchen, server, talk)
        answers, chosen_s = _cook(kitchen, talk)
        score_table = _score(kitchen, answers, talk)
        _outcome(job, score_table, seconds=chosen_s)
        domain, model, whose = _soup_to_show(score_table, answers)
        _continuation(job, server, domain=domain, models=(kitchen.base_ref, model), whose=whose)
        _chat(client, model)
    _what_next(job, talk.seconds, prefix="SOUP_DATABASE_URL=... " if options.database_url else "")
    if options.out is not None:
        note = "at most; installation, download and training not included"
        reused = kitchen.scores.reused
        note += f"; of an earlier run that was interrupted, {reused} scores were kept" if reused else ""
        wall = Figure(time.monotonic() - began, "s", job.wall_goal, note=note).as_json()
        figures = {**table.figures(score_table), "wall_s": wall}
        write(options.out, name=options.out.stem, command=command, figures=figures, rows=table.rows(score_table))
        picture.draw(score_table, options.out.with_suffix(".svg"))
        print(f"Figures: {options.out}, and as a picture {options.out.with_suffix('.svg')}")


# --- push, fit, cook -------------------------------------------------------------------------------------


def _push(kitchen: Kitchen, server: Server, talk: Talk) -> None:
    """Push all adapters with the command line, wait until the samples are embedded, and fit all selectors."""
    job, client = kitchen.job, kitchen.client
    talk.stage(f"push: {len(job.pushed)} adapters over HTTP, and fit the selectors")
    folders = [str(job.adapters / name) for name in job.pushed]
    talk.line(f"$ soup push {job.adapters}/* --namespace {NAMESPACE} --wait")
    server.soup("push", *folders, "--namespace", NAMESPACE, "--wait")
    for name in job.pushed:
        kitchen.pushed[name] = _embedded(client, f"{NAMESPACE}/{name}")
    for adapter in client.adapters(kind="adapter", base_model=job.base.id):
        if adapter["namespace"] == NAMESPACE and adapter["name"] not in job.pushed:
            client.delete_adapter(adapter["ref"])  # of an earlier run with other domains
    for fit in FITS:
        talk.line(f"$ soup fit {' '.join(fit)}")
        server.soup("fit", *fit)


def _embedded(client: SoupClient, ref: str) -> dict[str, Any]:
    """A pushed adapter, after its sample is embedded; an interrupted run may leave it pending."""
    while (adapter := client.adapter(ref))["sample_state"] == "pending":
        time.sleep(0.5)
    if adapter["sample_state"] == "failed":
        raise DemoFailed(f"The sample of {adapter['ref']} could not be embedded; the server's log says why.")
    return adapter


def _cook(kitchen: Kitchen, talk: Talk) -> tuple[Answers, float]:
    """The answers of all strategies, and the seconds that the service's default took."""
    job = kitchen.job
    count = len(job.strategies)
    talk.stage(f"cook: {count} strategies for each novel domain ({len(job.novel)}), on up to {NOVEL_SAMPLE} passages")
    answers: dict[str, dict[str, Answer]] = {strategy.name: {} for strategy in job.strategies}
    seconds = 0.0
    with talk.bar("cooking") as report:
        for number, domain in enumerate(job.novel):
            sample = job.sample(domain)
            for place, strategy in enumerate(job.strategies):
                report(number * count + place, len(job.novel) * count, f"{domain}: {strategy.name}")
                began = time.monotonic()
                answers[strategy.name][domain] = cook(kitchen.client, strategy, sample)
                seconds += time.monotonic() - began if strategy == SERVICE else 0.0
    return answers, seconds


# --- score -----------------------------------------------------------------------------------------------


def _score(kitchen: Kitchen, answers: Answers, talk: Talk) -> Table:
    """Score each model of any row once, and make the table."""
    job = kitchen.job
    talk.stage("score: perplexity on the test passages of each novel domain")
    base: dict[str, Entry] = {}
    control: dict[str, Entry] = {}
    singles: dict[str, dict[str, Score]] = {}
    cooked: dict[str, dict[str, Entry]] = {name: {} for name in answers}
    with talk.bar("scoring") as report:
        for number, domain in enumerate(job.novel):
            report(number, len(job.novel), domain)
            texts = job.test(domain)
            base[domain] = Entry(kitchen.score(texts, kitchen.base_ref, None), kitchen.base_ref)
            alone = {
                name: kitchen.score(texts, kitchen.ref(name), str(kitchen.pushed[name]["digest"]))
                for name in (job.pushed if job.oracle else job.pushed[len(job.training) :])
            }
            if job.control:
                control[domain] = Entry(alone.pop(job.control), kitchen.ref(job.control))
            if alone:
                singles[domain] = alone
            for name, by_domain in answers.items():
                answer = by_domain[domain]
                description = answer.reason if answer.abstained else ", ".join(answer.ingredients)
                score = kitchen.score(texts, answer.model, answer.digest)
                cooked[name][domain] = Entry(score, answer.model, description=description, abstained=answer.abstained)
    rows = [Row("base model", base), *([Row(table.CONTROL, control)] if control else [])]
    chosen = [Row(name, entries) for name, entries in cooked.items()]
    oracle = [table.oracle(singles, {name: kitchen.ref(name) for name in job.training})] if singles else []
    return Table([*rows, *chosen[:-1], *oracle, chosen[-1]], singles)


# --- what a person reads at the end ----------------------------------------------------------------------


def _outcome(job: Job, score_table: Table, *, seconds: float) -> None:
    """Print the sentence and the table, and draw the plot."""
    print(f"\n{table.sentence(score_table, answer=score_table.rows[-1], seconds=seconds)}\n")
    print(table.text(score_table, width=min(100, shutil.get_terminal_size((100, 40)).columns)))
    tokens = {domain: entry.score.tokens for domain, entry in score_table.base.entries.items()}
    print(
        f"\nTest passages and tokens: {', '.join(f'{d} {len(each)} / {sum(each):,}' for d, each in tokens.items())}."
        f"\nBeside each perplexity: its change against the base, ± the paired standard error over passages (a lower"
        f"\nbound: passages of one document are not independent). The control is an adapter trained like the others on"
        f"\ntext of no domain: what any training brings. What counts is the gain over it.\n",
        flush=True,
    )
    path = job.home / "soups.svg"
    picture.draw(score_table, path)
    print(f"Picture: {path}\n", flush=True)


def _soup_to_show(score_table: Table, answers: Answers) -> tuple[str, str, str]:
    """(domain, model, words for it): a soup of several adapters, where its difference to the base is best.

    The soup is one of the service's default answers if any is a soup, else of another strategy.
    """
    rows = {row.name: row for row in score_table.rows}
    for name in reversed(list(answers)):
        soups = [d for d, answer in answers[name].items() if not answer.abstained and len(answer.ingredients) > 1]
        if soups:
            best = min(soups, key=lambda domain: score_table.difference(rows[name], domain).difference)
            return best, answers[name][best].model, f'the soup of "{name}"'
    domain = score_table.domains[0]
    return domain, answers[SERVICE.name][domain].model, "what the service answers"


def _continuation(job: Job, server: Server, *, domain: str, models: Sequence[str], whose: str) -> None:
    """Print the continuation of one prompt by each of `models`, the base model and a soup."""
    prompt = " ".join(job.test(domain)[0].split()[:PROMPT_WORDS])
    print(f"A prompt of {domain}, continued by the base and by {whose}:\n  {prompt} ...")
    tokens = str(min(60, shape_of(job.base, job.home / "cache").context // 4))
    for ref in dict.fromkeys(models):
        continuation = server.soup("generate", ref, prompt, "--max-tokens", tokens, *CONTINUE).strip()
        print(f"\n  $ soup generate {ref} ...\n    " + continuation.replace("\n", "\n    "))


def _chat(client: SoupClient, model: str) -> None:
    """Ask a model a question through /v1/chat/completions, if the base model has a chat template."""
    try:
        answer = client.chat(model, [{"role": "user", "content": QUESTION}], max_tokens=60, temperature=0.0)
    except InvalidParameter as problem:
        if "no chat template" not in str(problem):
            raise
        return
    print(f"\nA question to {model}, through /v1/chat/completions:\n  {QUESTION}")
    print("    " + str(answer["choices"][0]["message"]["content"]).strip().replace("\n", "\n    "))


def _what_next(job: Job, seconds: float, *, prefix: str) -> None:
    """Print the next steps; `prefix` precedes the command that starts the server."""
    print(f"""
What to do next ({Path(sys.executable).parent} holds the commands)
  {prefix}soup serve --bases {job.bases} --data {job.home / "server"}
      the same server again, with every adapter and soup in it; it prints its address, and /docs there is the HTTP API
  SOUP_DATA={job.home / "server"} soup ls --url ADDRESS
      what is in it, with the key that the server wrote there; so for all commands below
  soup cook --sample your-passages.jsonl
      a soup for text of your own (about 100 passages, one {{"text": ...}} a line)
  soup train --help
      an adapter of your own
It took {seconds:.0f} seconds. Everything it made is in {job.home}, and the next run uses it again.""")
