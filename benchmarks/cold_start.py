"""How long a command of `soup` takes before it does anything: whole processes, from nothing to their exit.

The peers are what one would pay without lazy imports: the interpreter alone, and a process that imports torch. Files
are in the page cache: one run of each comes before those that count.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from statistics import median

from benchmarks.report import Result, interleaved, options, repeated
from demo.results import ROOT

PROGRAMS: dict[str, tuple[str, ...]] = {
    "python": ("-c", "pass"),
    "soup_help": ("-m", "service.cli", "--help"),
    "soup_push_help": ("-m", "service.cli", "push", "--help"),
    "soup_version": ("-m", "service.cli", "--version"),
    "import_client": ("-c", "import service.client"),
    "import_torch": ("-c", "import torch"),
}
GOALS = {"soup_help": 0.5, "import_client": 0.5}


def process(arguments: tuple[str, ...]) -> Callable[[], object]:
    """A call that runs one whole process."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return lambda: subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, env=environment, check=True, stdout=subprocess.DEVNULL
    )


def run(repeats: int) -> Result:
    """Measure every program."""
    result = Result("cold_start")
    times = interleaved({name: process(arguments) for name, arguments in PROGRAMS.items()}, repeats=repeats)
    for name, found in times.items():
        result.figures[f"{name}_s"] = repeated(found, "s", goal=GOALS.get(name))
        result.rows.append({"program": name, "command": " ".join(("python", *PROGRAMS[name])), "wall_s": median(found)})
    return result


def main() -> None:
    """The command line."""
    parser = options(__doc__)
    arguments = parser.parse_args()
    run(arguments.repeats).finish(arguments.out)


if __name__ == "__main__":
    main()
