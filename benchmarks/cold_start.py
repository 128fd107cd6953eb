"""How long a command and the client take to start, and what a server's start costs.

Commands are whole processes, from nothing to their exit. `serve_ready_cpu_s` is the CPU time, of all its threads, that
`soup serve` has taken when `/readyz` answers on a new data folder and a small base model. Files are in the page cache:
one run of each comes before those that count.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Callable
from pathlib import Path
from statistics import median

from benchmarks.report import Result, interleaved, options, repeated
from benchmarks.subjects import small_base
from demo.results import ROOT

PROGRAMS: dict[str, tuple[str, ...]] = {
    "soup_help": ("-m", "adaptersoup.cli", "--help"),
    "import_client": ("-c", "import adaptersoup.client"),
}
GOAL = 0.5
READY_CPU_GOAL = 10.0


def process(arguments: tuple[str, ...]) -> Callable[[], object]:
    """A call that runs one whole process."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return lambda: subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, env=environment, check=True, stdout=subprocess.DEVNULL
    )


def server_start(base_folder: Path) -> float:
    """CPU seconds of a server over a new data folder until `/readyz` says ready; it is killed then."""
    with tempfile.TemporaryDirectory() as folder:
        bases = Path(folder) / "bases.toml"
        bases.write_text(f"[bases.small]\nsource = {json.dumps(str(base_folder.resolve()))}\n")
        server = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "adaptersoup.cli",
                "serve",
                "--bases",
                str(bases),
                "--data",
                f"{folder}/data",
                "--port",
                "0",
                "--json",
            ],
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        try:
            assert server.stdout is not None
            announcement = json.loads(server.stdout.readline() or '{"url": "http://127.0.0.1:0"}')
            with urllib.request.urlopen(f"{announcement['url']}/readyz", timeout=60) as answer:
                assert json.load(answer)["status"] == "ready"
        finally:
            os.kill(server.pid, signal.SIGKILL)  # Popen.kill would reap one that has ended, and its figures with it
            _, server.returncode, used = os.wait4(server.pid, 0)
            server.communicate()
    return used.ru_utime + used.ru_stime


def run(repeats: int, *, base_folder: Path) -> Result:
    """Measure every program, and the server's start."""
    result = Result()
    times = interleaved({name: process(arguments) for name, arguments in PROGRAMS.items()}, repeats=repeats)
    for name, wall_seconds in times.items():
        result.figures[f"{name}_s"] = repeated(wall_seconds, "s", goal=GOAL)
        result.rows.append(
            {"program": name, "command": " ".join(("python", *PROGRAMS[name])), "wall_s": median(wall_seconds)}
        )
    server_start(base_folder)
    starts = [server_start(base_folder) for _ in range(repeats)]
    result.figures["serve_ready_cpu_s"] = repeated(starts, "CPU s", goal=READY_CPU_GOAL)
    return result


def main() -> None:
    """The command line."""
    parser = options(__doc__)
    parser.add_argument("--base", type=Path, help="folder of the server's base model, instead of a small random one")
    arguments = parser.parse_args()
    run(arguments.repeats, base_folder=arguments.base or small_base()).finish(arguments.out)


if __name__ == "__main__":
    main()
