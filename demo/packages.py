"""Text that every installation has: the docstrings of the installed Python packages, one package = one domain.

Modules are parsed, never imported. Which part of a domain a passage belongs to is decided by the module it comes
from, so no module is in two parts. Three packages are held back: neither the base model nor any adapter is trained
on them, and what other packages copied from them is dropped there.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import json
import platform
import shutil
import sysconfig
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

from demo.passages import SHORTEST, Seen, cut
from training.data import draw

TRAINING = (
    "huggingface_hub", "narwhals", "pydantic", "python", "scipy", "sklearn", "sqlalchemy", "sympy", "torch",
    "transformers",
)  # fmt: skip
NOVEL = ("networkx", "numpy", "sentence_transformers")
MIXED = (
    "alembic", "anyio", "click", "fastapi", "fsspec", "jinja2", "joblib", "mpmath", "packaging", "pip",
    "prometheus_client", "pygments", "regex", "rich", "setuptools", "starlette", "tqdm", "typer", "urllib3",
)  # fmt: skip
"""Packages that only the base model (and the control adapter) is trained on, besides its part of each of TRAINING."""

_SKIPPED = frozenset({"test", "tests", "testing", "idlelib", "lib2to3", "site-packages", "dist-packages"})
Told = Callable[[int, int, str], object]


@dataclass(frozen=True)
class Shares:
    """Parts of a domain: name -> (share of its modules, most characters to take)."""

    parts: Mapping[str, tuple[float, int]]

    def part_of(self, module: str) -> str:
        """The part a module belongs to, by the hash of its path."""
        point = int.from_bytes(hashlib.sha256(module.encode()).digest()[:8], "big") / 2**64
        for name, (share, _) in self.parts.items():
            if point < share:
                return name
            point -= share
        return list(self.parts)[-1]


NOVEL_SHARES = Shares({"valid": (0.5, 120_000), "test": (0.5, 120_000)})


def training_shares(base_characters: int) -> Shares:
    """How a package of TRAINING is divided; the base model's part is the larger the longer it is trained."""
    return Shares({
        "base": (0.40, base_characters), "train": (0.36, 400_000), "valid": (0.12, 50_000), "test": (0.12, 50_000)
    })  # fmt: skip


@dataclass
class Domain:
    """The passages of one package, by part; `skipped` counts those that other text had already."""

    name: str
    parts: dict[str, list[str]] = field(default_factory=dict)
    skipped: int = 0


def collect(told: Told = lambda *_: None, *, base_characters: int = 60_000) -> dict[str, Domain]:
    """Every domain, the held-back ones first, so that no other keeps a passage of theirs.

    `base_characters` is the most that a package gives to its part `base`: the demo needs a little for its control
    adapter, training the base model a lot. A package of MIXED that is not installed is left out; one of the others
    is an error.
    """
    seen = Seen()
    plan = [(n, NOVEL_SHARES) for n in NOVEL] + [(n, training_shares(base_characters)) for n in TRAINING]
    plan += [(n, Shares({"base": (1.0, base_characters)})) for n in MIXED if installed(n) is not None]
    domains = {}
    for number, (name, shares) in enumerate(plan):
        told(number, len(plan), name)
        domains[name] = read_package(name, shares, seen)
    told(len(plan), len(plan), "")
    return domains


def installed(package: str) -> Path | None:
    """The folder of an installed package, found without importing it; `python` is the standard library."""
    if package == "python":
        return Path(sysconfig.get_paths()["stdlib"])
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(next(iter(spec.submodule_search_locations)))


def read_package(name: str, shares: Shares, seen: Seen) -> Domain:
    """The passages of a package, until each part is full; modules come in an order that looks random and is fixed."""
    folder = installed(name)
    if folder is None:
        raise FileNotFoundError(f"The Python package {name} is not installed: `make setup` installs what is needed.")
    domain = Domain(name, {part: [] for part in shares.parts})
    room = {part: most for part, (_, most) in shares.parts.items()}
    for module in _modules(folder):
        part = shares.part_of(f"{name}/{module.relative_to(folder).as_posix()}")
        if room[part] <= 0:
            continue
        for passage in (p for text in docstrings(module) for p in cut(text)):
            if not seen.is_new(passage):
                domain.skipped += 1
            elif room[part] > 0:
                domain.parts[part].append(passage)
                room[part] -= len(passage)
        if all(left <= 0 for left in room.values()):
            break
    return domain


def _modules(folder: Path) -> list[Path]:
    """The package's modules but its tests, ordered by the hash of their paths."""
    found = [p for p in folder.rglob("*.py") if not _SKIPPED & set(p.relative_to(folder).parts[:-1])]
    return sorted(found, key=lambda p: hashlib.sha256(p.relative_to(folder).as_posix().encode()).digest())


def docstrings(module: Path) -> Iterator[str]:
    """Docstrings of a module, its classes and functions that are long enough; none if it does not parse."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes in other people's strings
            tree = ast.parse(module.read_bytes())
    except (SyntaxError, ValueError, OSError, RecursionError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text and len(text) >= SHORTEST:
                yield text


CONTROL = "mixed-control"
CONTROL_PASSAGES = 560
"""About as much text as a training domain has."""


def write(folder: Path, told: Told = lambda *_: None) -> None:
    """The domains as a data folder: `train/<domain>`, `novel/<domain>` and `mixed/<CONTROL>`, JSON lines a part.

    What is there is kept if it came from the same versions of the same packages, divided in the same way.
    """
    stamp = _stamp()
    done = folder / "packages.json"
    if done.is_file() and json.loads(done.read_text()) == stamp:
        return
    shutil.rmtree(folder, ignore_errors=True)
    domains = collect(told)
    for name in NOVEL:
        _write_parts(folder / "novel" / name, domains[name].parts)
    for name in TRAINING:
        parts = domains[name].parts
        _write_parts(folder / "train" / name, {part: parts[part] for part in ("train", "valid", "test")})
    mixed = draw([text for d in domains.values() for text in d.parts.get("base", [])], CONTROL_PASSAGES + 80, seed=0)
    parts = {"train": [t for i, t in enumerate(mixed) if i % 8], "valid": mixed[::8]}
    _write_parts(folder / "mixed" / CONTROL, parts)
    done.write_text(json.dumps(stamp, indent=1) + "\n")


def _stamp() -> dict[str, object]:
    """Everything the text depends on but this program, as JSON."""
    groups = {"train": TRAINING, "novel": NOVEL, "mixed": MIXED}
    shares = {"train": training_shares(0), "novel": NOVEL_SHARES}
    return {
        **{kind: {name: version(name) for name in names} for kind, names in groups.items()},
        "shares": {kind: {part: list(value) for part, value in s.parts.items()} for kind, s in shares.items()},
        "control": CONTROL_PASSAGES,
    }


def _write_parts(folder: Path, parts: Mapping[str, list[str]]) -> None:
    folder.mkdir(parents=True)
    for part, texts in parts.items():
        lines = "".join(json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in texts)
        (folder / f"{part}.jsonl").write_text(lines, encoding="utf-8", errors="replace")


def version(package: str) -> str:
    """The installed version of a package; `-` for one that is not installed."""
    if package == "python":
        return platform.python_version()
    try:
        return metadata.version({"sklearn": "scikit-learn"}.get(package, package))
    except metadata.PackageNotFoundError:
        return "-"
