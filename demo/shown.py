"""What a person reads at the end: one sentence, a picture, the table, two continuations, a chat, what to do next."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from demo import picture, table
from demo.job import Job
from demo.prepare import Options
from demo.results import Figure, write
from demo.server import Server
from demo.strategies import CLUSTERING, PAPER, SERVICE, SIMILARITY, UNIFORM, Answer
from demo.table import Table
from registry.base_model import shape_of
from registry.errors import InvalidParameter
from service.client.client import SoupClient

PROMPT_WORDS = 16
CONTINUE = ("--temperature", "0.7", "--top-p", "0.95", "--seed", "1")
QUESTION = "What is a soup made of? Answer in two sentences."


def outcome(job: Job, found: Table, *, seconds: float) -> None:
    """Print the sentence and the table, and draw the picture."""
    answer = next(row for row in found.rows if row.name == SERVICE.name)
    print(f"\n{table.sentence(found, answer=answer, seconds=seconds)}\n")
    print(table.text(found, width=min(100, shutil.get_terminal_size((100, 40)).columns)))
    tokens = {domain: entry.cell.tokens for domain, entry in found.base.entries.items()}
    print(
        f"\nTest passages and tokens: {', '.join(f'{d} {len(each)} / {sum(each):,}' for d, each in tokens.items())}."
        f"\nBeside each perplexity: its change against the base, ± the paired standard error over passages (a lower"
        f"\nbound: passages of one document are not independent). The control is an adapter trained like the others on"
        f"\ntext of no domain: what any training brings. What counts is the gain over it.\n",
        flush=True,
    )
    path = job.home / "soups.svg"
    picture.draw(found, path)
    print(f"Picture: {path}\n", flush=True)


def soup_to_show(found: Table, answers: Mapping[str, Mapping[str, Answer]]) -> tuple[str, str, str]:
    """(domain, model, words for it): a soup of several adapters, where its difference to the base is best."""
    by_name = {row.name: row for row in found.rows}
    for strategy, whose in (
        (SERVICE, "the soup that the service answers"),
        (CLUSTERING, "the soup by clustering (the service, verifying it, answers with something else)"),
        (PAPER, "the soup by clustering as in the paper"),
        (SIMILARITY, "the soup by similarity"),
        (UNIFORM, "the uniform soup"),
    ):
        by_domain = answers.get(strategy.name, {})
        taken = [d for d, answer in by_domain.items() if not answer.abstained and len(answer.ingredients) > 1]
        if taken:
            best = min(taken, key=lambda domain: found.difference(by_name[strategy.name], domain).difference)
            return best, by_domain[best].model, whose
    domain = found.domains[0]
    return domain, answers[SERVICE.name][domain].model, "what the service answers"


def continuation(job: Job, server: Server, *, domain: str, models: Sequence[str], whose: str) -> None:
    """One prompt continued by each of `models`, the base and a soup."""
    prompt = " ".join(job.test(domain)[0].split()[:PROMPT_WORDS])
    print(f"A prompt of {domain}, continued by the base and by {whose}:")
    print(f"  {prompt} ...")
    tokens = str(min(60, shape_of(job.base, job.home / "cache").context // 4))
    for ref in dict.fromkeys(models):
        said = server.soup("generate", ref, prompt, "--max-tokens", tokens, *CONTINUE).strip()
        print(f"\n  $ soup generate {ref} ...\n    " + said.replace("\n", "\n    "))


def chat(client: SoupClient, model: str) -> None:
    """A question to a model through /v1/chat/completions, where the base model has a chat template."""
    try:
        answer = client.chat(model, [{"role": "user", "content": QUESTION}], max_tokens=60, temperature=0.0)
    except InvalidParameter as problem:
        if "no chat template" not in str(problem):
            raise
        return
    print(f"\nA question to {model}, through /v1/chat/completions:\n  {QUESTION}")
    print("    " + str(answer["choices"][0]["message"]["content"]).strip().replace("\n", "\n    "))


def what_next(job: Job, seconds: float, *, database: bool) -> None:
    """Print what to do next; `database` says that the server's rows are in a PostgreSQL."""
    before = "SOUP_DATABASE_URL=... " if database else ""
    print(f"""
What to do next ({Path(sys.executable).parent} holds the commands)
  {before}soup serve --bases {job.bases} --data {job.home / "server"}
      the same server again, with every adapter and soup in it; it prints its address, and /docs there is the HTTP API
  SOUP_DATA={job.home / "server"} soup ls --url ADDRESS
      what is in it, with the key that the server wrote there; so for all commands below
  soup cook --sample your-passages.jsonl
      a soup for text of your own (about 100 passages, one {{"text": ...}} a line)
  soup train --help
      an adapter of your own
It took {seconds:.0f} seconds. Everything it made is in {job.home}, and the next run uses it again.""")


def write_figures(job: Job, found: Table, options: Options, *, seconds: float, kept: int) -> None:
    """Write the results file that `--out` names, and the picture beside it; `kept` scores are of an earlier run."""
    assert options.out is not None
    figures = table.figures(found)
    note = "at most; installation, download and training not included"
    note += f"; of an earlier run that was interrupted, {kept} scores were kept" if kept else ""
    figures["wall_s"] = Figure(seconds, "s", job.wall_goal, [seconds], note).as_json()
    write(options.out, name=options.out.stem, command=options.command, figures=figures, rows=table.rows(found))
    picture.draw(found, options.out.with_suffix(".svg"))
    print(f"Figures: {options.out}, and as a picture {options.out.with_suffix('.svg')}")
