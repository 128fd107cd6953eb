"""The results file of a run (DESIGN section 9): figures and rows, with command, date, commit and machine."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

FLAGS = ("avx2", "avx512f", "avx512_bf16", "amx_bf16", "amx_tile")
"""Flags of a CPU that change which dtype is fast."""


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
    """The commit of this checkout, None outside of one."""
    here = Path(__file__).parent
    try:
        done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=here, capture_output=True, text=True, check=False)
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def machine() -> dict[str, Any]:
    """What the run had: processor with the flags that matter, cores, memory, versions."""
    import torch

    info = _cpuinfo()
    flags = set(info.get("flags", "").split())
    return {
        "processor": info.get("model name") or platform.processor() or platform.machine(),
        "flags": [flag for flag in FLAGS if flag in flags],
        "cores": os.cpu_count(),
        "memory_gib": _memory_gib(),
        "system": platform.system(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


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
