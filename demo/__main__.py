"""`make demo`: the main job from domain text to a served soup, offline, through the server and its command line.

Prepares adapters (`demo.prepare` from the installed packages, or `demo.corpora` from folders), starts a server, pushes
them, fits the selectors, cooks with every strategy, and prints the table. Everything is kept in a folder, so that a
second run, or one that was interrupted, goes on with what is there.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # before torch: two busy threads that spin starve each other

from demo.measure import DomainResult, measure
from demo.server import Server, serving
from demo.table import body_of, figures_of, printed
from demo.work import Work
from registry.errors import SoupError
from registry.names import digest_of
from service.commands.output import progress_bar, talk

FOLDER = Path(".demo")
SHOWN_TOKENS = 40
PROMPT_WORDS = 12
SELECTORS = (("gmm",), ("gmm", "--paper"), ("cosine",), ("uniform",))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo; 0 when the table was printed, 1 with one sentence when something is in the way."""
    options = _parser().parse_args(arguments)
    started = time.monotonic()
    try:
        work = _prepared(options)
        folder = options.folder / digest_of(work.base_id)[7:19]
        with _stage("starting a server on loopback"), serving(work, folder) as server:
            _stock(work, server)
            with _stage("cooking with every strategy and scoring on test text"), progress_bar("scoring") as report:
                results = measure(work, server, folder, report)
            _show(work, results, server)
    except SoupError as error:
        talk(f"demo: {error.message}")
        return 1
    except KeyboardInterrupt:
        talk("demo: stopped; the same command goes on from here.")
        return 130
    if options.out is not None:
        _write(options.out, work, results, time.monotonic() - started)
    _next_steps(folder, time.monotonic() - started)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m demo", description=__doc__)
    parser.add_argument("--data", type=Path, help="corpora: train/<domain> and novel/<domain>")
    parser.add_argument("--base", type=Path, help="folder of the base model the adapters were trained on")
    parser.add_argument("--adapters", type=Path, help="trained adapters in the neutral form (demo/convert.py)")
    parser.add_argument("--out", type=Path, help="write the result file here")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where everything is kept (default: .demo)")
    return parser


def _prepared(options: argparse.Namespace) -> Work:
    given = [options.data, options.base, options.adapters]
    if any(given) and not all(given):
        raise SoupError("DATA, BASE and ADAPTERS go together: give all three, or none.")
    if all(given):
        from demo import corpora

        with _stage("converting adapters"):
            return corpora.prepare(options.data, options.base, options.adapters, options.folder / "corpora")
    from demo import prepare

    with _stage("training adapters on the documentation of the installed packages"):
        return prepare.prepare(options.folder / "packages")


def _stock(work: Work, server: Server) -> None:
    """Push everything with the command line, and fit the selectors."""
    folders = [str(path) for path in (*work.adapters.values(), work.control)]
    with _stage(f"soup push: {len(folders)} adapters, their samples embedded by two encoders"):
        server.soup("push", *folders, "--namespace", "demo", "--wait")
    for selector in SELECTORS:
        with _stage(f"soup fit --selector {' '.join(selector)}"):
            server.soup("fit", "--selector", *selector, "--pool-namespace", "demo", "--base", work.base_id)


@contextmanager
def _stage(what: str) -> Iterator[None]:
    talk(f"- {what}")
    started = time.monotonic()
    yield
    talk(f"  {time.monotonic() - started:.0f} s")


def _show(work: Work, results: Sequence[DomainResult], server: Server) -> None:
    print(f"\n{work.title}\n{work.note}\n")
    print(printed(results))
    soups = [(one, answer) for one in results for answer, _ in one.answers if not answer.abstained]
    shown, answer = next(((r, a) for r, a in reversed(soups) if "soup" in a.model), soups[-1])
    prompt = " ".join(work.novel[shown.name].test[0].split()[:PROMPT_WORDS])
    print(f"\nA continuation on {shown.name}, temperature 0.7, seed 0, of: {prompt} ...")
    with server.client() as client:
        for model in (f"base/{work.base_id}", answer.model):
            told = client.complete(model, prompt, max_tokens=SHOWN_TOKENS, temperature=0.7, seed=0)
            print(f"\n[{model}]\n{told['choices'][0]['text'].strip()}")


def _write(path: Path, work: Work, results: Sequence[DomainResult], seconds: float) -> None:
    from benchmarks.report import write_result

    figures = figures_of(results)
    figures["seconds"] = {"value": round(seconds, 1), "goal": None, "unit": "s", "repeats": [round(seconds, 1)]}
    write_result(path, name=path.stem, figures=figures, rows=body_of(results), note=f"{work.title}. {work.note}")
    talk(f"- results written to {path}")


def _next_steps(folder: Path, seconds: float) -> None:
    bases, data = folder / "bases.toml", folder / "server"
    print(
        f"\nDone in {seconds:.0f} s. What to do next:\n"
        f"  .venv/bin/soup serve --bases {bases} --data {data}      # serve what was pushed and cooked\n"
        f"  export SOUP_DATA={data}                                 # where the command line finds the key\n"
        f"  .venv/bin/soup ls --kind soup                           # the soups\n"
        f"  .venv/bin/soup cook --sample yours.jsonl --pool-namespace demo   # one for your own text\n"
        "  docs/tutorial.md                                        # step by step, with your own adapters"
    )


if __name__ == "__main__":
    sys.exit(main())
