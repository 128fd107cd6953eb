"""The form of every result: figures with goals and repeats, rows, and what they were measured on.

Called by every benchmark, and by the demo for its tables. Shares and overheads are fractions, ratios plain numbers,
counts integers; keys of times end in `_ms` or `_s`. The value of a repeated figure is the median of its repeats.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any, Literal

ROOT = Path(__file__).parents[1]
FLAGS = ("avx2", "avx512f", "avx512_bf16", "avx512_vnni", "amx_bf16", "amx_tile")
"""Flags of a CPU that change what is fast, and which dtype is."""

CODE = ("*.py", "pyproject.toml", "constraints.txt", ":!tests", ":!docs")
"""What a measurement depends on."""

Row = dict[str, Any]


@dataclass(frozen=True)
class Figure:
    """One number that may be quoted; `goal` is its task's, also where it is missed."""

    value: float
    unit: str
    goal: float | None = None
    repeats: Sequence[float] = ()
    note: str = ""

    def as_json(self) -> dict[str, Any]:
        """As the results file has it."""
        found: dict[str, Any] = {"value": self.value, "goal": self.goal, "unit": self.unit}
        found["repeats"] = [rounded(value) for value in self.repeats]
        return found | {"value": rounded(self.value)} | ({"note": self.note} if self.note else {})


def repeated(repeats: Sequence[float], unit: str, *, goal: float | None = None, note: str = "") -> Figure:
    """The figure of repeated measurements: their median."""
    return Figure(median(repeats), unit, goal, tuple(repeats), note)


@dataclass
class Result:
    """What a benchmark found; `rows` is every cell behind the figures."""

    name: str
    figures: dict[str, Figure] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)

    def print(self) -> None:
        """The rows and the figures as two tables."""
        print(table(self.rows))
        print()
        print(
            table(
                [
                    {"figure": name, "value": figure.value, "unit": figure.unit, "goal": figure.goal}
                    for name, figure in self.figures.items()
                ]
            )
        )

    def finish(self, out: Path | None) -> None:
        """Print, and write to `out` where there is one."""
        self.print()
        if out is not None:
            figures = {name: figure.as_json() for name, figure in self.figures.items()}
            write(out, name=self.name, command=command(), figures=figures, rows=self.rows)
            print(f"\nwritten to {out}")


def options(description: str | None) -> argparse.ArgumentParser:
    """A parser with what every benchmark takes."""
    parser = argparse.ArgumentParser(description=(description or "").splitlines()[0])
    parser.add_argument("--out", type=Path, help="write the results file here")
    parser.add_argument("--repeats", type=int, default=3, help="repeats of each measurement; the median counts")
    return parser


def command() -> str:
    """How this program was called, so that it can be called again."""
    module = sys.modules["__main__"].__spec__
    name = module.name.removesuffix(".__main__") if module is not None else sys.argv[0]
    return " ".join(["python", "-m", name, *sys.argv[1:]])


def seconds(call: Callable[[], object]) -> float:
    """Wall time of one call; garbage of earlier ones is collected before."""
    gc.collect()
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def interleaved(
    calls: Mapping[str, Callable[[], object]], *, repeats: int, warm: bool = False
) -> dict[str, list[float]]:
    """Seconds of each call, `repeats` times, in turn, so that what slows the machine slows all of them.

    Each runs once before, unless they are `warm`.
    """
    for call in () if warm else calls.values():
        call()
    found: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(repeats):
        for name, call in calls.items():
            found[name].append(seconds(call))
    return found


def ratios(above: Sequence[float], below: Sequence[float]) -> list[float]:
    """Repeat by repeat: one over the other."""
    return [one / other for one, other in zip(above, below, strict=True)]


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows as aligned columns; the first row names them."""
    if not rows:
        return ""
    heads = list(rows[0])
    cells = [heads, *([_cell(row.get(head)) for head in heads] for row in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(heads))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in cells)


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def rounded(value: float) -> float:
    """Six significant digits; counts stay whole."""
    return value if isinstance(value, int) else float(f"{value:.6g}")


def write(
    path: Path, *, name: str, command: str, figures: Mapping[str, Any], rows: Sequence[Mapping[str, Any]],
    partial: bool = False,
) -> None:  # fmt: skip
    """Write a results file, all at once."""
    value = {
        "name": name,
        "command": command,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "machine": machine(),
        "figures": dict(figures),
        "rows": list(rows),
        **({"partial": True} if partial else {}),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.new")
    beside.write_text(json.dumps(value, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    beside.replace(path)


def commit() -> str | None:
    """The commit of this checkout, `-dirty` where code has changed since; None outside of one."""
    try:
        head = _git("rev-parse", "HEAD").strip()
        changed = _git("status", "--porcelain", "--untracked-files=no", "--", *CODE)
    except (OSError, subprocess.CalledProcessError):
        return None
    return head + ("-dirty" if changed else "")


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout


def machine() -> dict[str, Any]:
    """What the run had: processor with the flags that matter, cores, memory, versions."""
    info = _cpuinfo()
    flags = set(info.get("flags", "").split())
    return {
        "processor": info.get("model name") or platform.processor() or platform.machine(),
        "flags": [flag for flag in FLAGS if flag in flags],
        "cores": os.cpu_count(),
        "memory_gib": _memory_gib(),
        "system": platform.system(),
        "python": platform.python_version(),
        "threads": {name: os.environ[name] for name in ("OMP_NUM_THREADS", "OMP_WAIT_POLICY") if name in os.environ},
        "torch": version("torch"),
        "transformers": version("transformers"),
    }


def best_dtype() -> Literal["float32", "bfloat16"]:
    """What trains fastest on this CPU: bf16 where it has instructions for it; elsewhere that is emulated, and slow."""
    flags = _cpuinfo().get("flags", "").split()
    return "bfloat16" if {"avx512_bf16", "amx_bf16"} & set(flags) else "float32"


def _cpuinfo() -> dict[str, str]:
    """The first processor of /proc/cpuinfo; empty where there is none."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8").split("\n\n")[0]
    except OSError:
        return {}
    pairs = (line.partition(":") for line in text.splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


def _memory_gib() -> float | None:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
    except (ValueError, OSError):
        return None
