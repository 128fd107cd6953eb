"""The form of a results file: figures with goals and repeats, rows, and the commit and machine they were measured on.

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
"""Flags of a CPU that change what is fast, and which dtype is."""

WAITING = ("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "OPENBLAS_NUM_THREADS")
"""Variables that say how many threads compute, and how they wait."""

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
        repeats = [rounded(value) for value in self.repeats]
        found = {"value": rounded(self.value), "goal": self.goal, "unit": self.unit, "repeats": repeats}
        return found | ({"note": self.note} if self.note else {})


def rounded(value: float) -> float:
    """Six significant digits; counts stay whole."""
    return value if isinstance(value, int) else float(f"{value:.6g}")


def write(
    path: Path, *, name: str, command: str, figures: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]
) -> None:
    """Write a results file, all at once."""
    about = {"name": name, "command": command, **_now(), "machine": machine()}
    _write(path, {**about, "figures": dict(figures), "rows": list(rows)})


def update(path: Path, *, figures: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], part: str) -> None:
    """Put what was measured of one part in the place of what a results file has of it; all else in it stays.

    The figures then say themselves when and at which commit they were measured.
    """
    value = json.loads(path.read_text(encoding="utf-8"))
    value["figures"] |= {name: {**figure, **_now()} for name, figure in figures.items()}
    value["rows"] = [row for row in value["rows"] if row.get("part") != part] + list(rows)
    _write(path, value)


def _now() -> dict[str, Any]:
    return {"date": datetime.now(UTC).isoformat(timespec="seconds"), "commit": commit()}


def _write(path: Path, value: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    data = json.dumps(value, indent=1, allow_nan=False).encode() + b"\n"
    replace_file(path, data, temporary=path.with_name(f".{path.name}.new"))


def command_line(module: str, arguments: Sequence[str]) -> str:
    """The command that a result came from, fit to be published.

    Of a database's URL only its kind is shown (the rest may hold a password), and no folder of this machine: a path
    within the checkout is written from there, of any other the last part.
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
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": platform.system(),
        "python": platform.python_version(),
        "threads": {name: os.environ[name] for name in WAITING if name in os.environ},
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
