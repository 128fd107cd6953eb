"""The format of a results file: figures with goals and repeats, rows, and the commit and machine of the measurement.

Written by the demo (`--out`) and by every benchmark. Shares and overheads are fractions, ratios plain numbers, counts
integers; keys of times end in `_ms` or `_s`. The value of a repeated figure is the median of its repeats.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

from registry.files import replace_file

ROOT = Path(__file__).parents[1]
FLAGS = ("avx2", "avx512f", "avx512_bf16", "avx512_vnni", "amx_bf16", "amx_tile")
"""CPU flags that affect speed and the fastest dtype."""

WAITING = ("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "OPENBLAS_NUM_THREADS")
"""Environment variables of the number of threads, and of how they wait."""

CODE = ("*.py", "pyproject.toml", "constraints.txt", ":!tests", ":!docs")
"""The files that a measurement depends on."""

Row = dict[str, Any]


@dataclass(frozen=True)
class Figure:
    """One number that may be quoted; `goal` is the goal that was set for it, reached or not."""

    value: float
    unit: str
    goal: float | None = None
    repeats: Sequence[float] = ()
    note: str = ""

    def as_json(self) -> dict[str, Any]:
        """The figure in the form of the results file."""
        repeats = [rounded(value) for value in self.repeats]
        figure = {"value": rounded(self.value), "goal": self.goal, "unit": self.unit, "repeats": repeats}
        return figure | ({"note": self.note} if self.note else {})


def rounded(value: float) -> float:
    """Round to six significant digits; integers are not changed."""
    return value if isinstance(value, int) else float(f"{value:.6g}")


def write(
    path: Path, *, name: str, command: str, figures: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]
) -> None:
    """Write a results file atomically."""
    about = {"name": name, "command": command, **_now(), "machine": machine()}
    _write(path, {**about, "figures": dict(figures), "rows": list(rows)})


def update(path: Path, *, figures: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], part_name: str) -> None:
    """Replace the figures and rows of one part of a results file, and keep the others.

    Each figure then records its own date and commit.
    """
    value = json.loads(path.read_text(encoding="utf-8"))
    value["figures"] |= {name: {**figure, **_now()} for name, figure in figures.items()}
    value["rows"] = [row for row in value["rows"] if row.get("part") != part_name] + list(rows)
    _write(path, value)


def _now() -> dict[str, Any]:
    return {"date": datetime.now(UTC).isoformat(timespec="seconds"), "commit": commit()}


def _write(path: Path, value: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    data = json.dumps(value, indent=1, allow_nan=False).encode() + b"\n"
    replace_file(path, data, temporary=path.with_name(f".{path.name}.new"))


def command_line(module: str, arguments: Sequence[str]) -> str:
    """The command that produced a result, without private values.

    A database's URL is reduced to its kind, because it may contain a password. Paths in the checkout are relative to
    it; of any other path only the last part remains.
    """
    return shlex.join(["python", "-m", module, *(_publishable(argument) for argument in arguments)])


def _publishable(argument: str) -> str:
    option, equals, value = argument.rpartition("=") if argument.startswith("--") else ("", "", argument)
    value = re.sub(r"://.*", "://...", value)
    if Path(value).is_absolute():
        path = Path(value)
        value = str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else path.name
    return option + equals + value


def commit() -> str | None:
    """The commit of this checkout, with `-dirty` if code has changed since; None outside a checkout."""
    try:
        head = _git("rev-parse", "HEAD").strip()
        changed = _git("status", "--porcelain", "--untracked-files=no", "--", *CODE)
    except (OSError, subprocess.CalledProcessError):
        return None
    return head + ("-dirty" if changed else "")


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout


def machine() -> dict[str, Any]:
    """The machine of a run: processor with relevant flags, cores, memory, and versions."""
    info = _cpuinfo()
    flags = set(info.get("flags", "").split())
    return {
        "processor": info.get("model name") or platform.processor() or platform.machine(),
        "flags": [flag for flag in FLAGS if flag in flags],
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": platform.system(),
        "python": platform.python_version(),
        "threads": {name: os.environ[name] for name in WAITING if name in os.environ},
        "torch": version("torch"),
        "transformers": version("transformers"),
    }


def best_dtype() -> Literal["float32", "bfloat16"]:
    """The fastest dtype for training on this CPU: bf16 if it has instructions for it, since emulated bf16 is slow."""
    flags = _cpuinfo().get("flags", "").split()
    return "bfloat16" if {"avx512_bf16", "amx_bf16"} & set(flags) else "float32"


def _cpuinfo() -> dict[str, str]:
    """The first processor of /proc/cpuinfo; empty without that file."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8").split("\n\n")[0]
    except OSError:
        return {}
    pairs = (line.partition(":") for line in text.splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}
