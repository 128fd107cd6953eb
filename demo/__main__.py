"""`python -m demo`, the command of `make demo`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from service.settings import calm_threads

os.environ["TQDM_DISABLE"] = "1"  # other libraries' bars: the demo draws its own
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
calm_threads()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo; return the exit code."""
    argv = list(sys.argv[1:] if arguments is None else arguments)
    options = _parser().parse_args(argv)
    if bool(options.data) != bool(options.adapters):
        print("error: --data and --adapters need each other: give both.", file=sys.stderr)
        return 2
    if options.base is None or Path(options.base).exists():
        os.environ["HF_HUB_OFFLINE"] = "1"  # before anything imports transformers
    try:
        return _run(options, argv)
    except KeyboardInterrupt:
        print("stopped; what is done is kept, the next run goes on from there.", file=sys.stderr)
        return 130


def _run(options: argparse.Namespace, argv: Sequence[str]) -> int:
    """Run the demo and return its exit code; separate because its imports take seconds."""
    from demo.results import command_line
    from demo.run import run
    from demo.server import DemoFailed
    from registry.errors import SoupError

    try:
        run(options, command_line("demo", argv))
    except (DemoFailed, SoupError) as problem:
        print(f"error: {problem}", file=sys.stderr)
        return 1
    except OSError as problem:
        print(f"error: {problem}. What is done is kept.", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m demo",
        description="Push adapters, cook soups for novel domains, and print what came out. Without arguments the "
        "shipped adapters on SmolLM2-135M; else on data and adapters of your own, and a base model of your own.",
    )
    parser.add_argument("--data", type=Path, help="folder with train/<domain>/ and novel/<domain>/ (.jsonl.gz)")
    parser.add_argument("--base", help="another base model: a folder, a .gguf file of a Llama, or a hub's id")
    parser.add_argument("--adapters", type=Path, help="folder of neutral adapters, one a domain")
    parser.add_argument("--database-url", help="URL of a PostgreSQL for the server, instead of SQLite")
    parser.add_argument("--out", type=Path, help="write figures and rows as JSON")
    return parser


if __name__ == "__main__":
    sys.exit(main())
