"""The three jobs there are: SmolLM2 with the shipped adapters, the installed packages' docstrings, people's own data.

Each is made ready here: its base model fetched or found, its adapters trained, converted or shipped.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from demo import gguf, packages, smollm2
from demo.adapters import convert_all, train_all
from demo.base import BASE_ID, SHIPPED
from demo.convert import neutral_domains
from demo.job import HOME, Job
from demo.progress import Talk
from demo.results import best_dtype
from demo.server import DemoFailed
from demo.strategies import EVERY, FEW
from registry.base_model import shape_of, weight_bytes
from registry.base_model.loading import source_folder
from registry.errors import InvalidParameter, NotFound
from registry.names import file_digest
from registry.spec import BaseEntry

DOMAINS = Path(__file__).parent / "domains"
"""Shipped: `adapters/<domain>` and the control's, trained on SmolLM2, and `novel/<domain>` with text."""
CONTROL = "control_textbooks"
MODELS = HOME / "models"
SMALL_BYTES = 100_000_000
LARGE_BASE: Mapping[str, Any] = {"test_passages": 40, "longest": 500}
"""With people's own base model of more weights than that: what keeps 21 + 10 domains within a hundred minutes."""
_HUB_ID = re.compile(r"([\w-][\w.-]*/[\w-][\w.-]*)(?:@([\w.-]+))?")


@dataclass(frozen=True)
class Options:
    """What the command line says; with nothing given, the shipped adapters on SmolLM2."""

    data: Path | None = None
    base: str | None = None
    """A folder, a GGUF file, or a hub's id, `owner/name` or `owner/name@revision`; None is SmolLM2."""
    adapters: Path | None = None
    tiny: bool = False
    out: Path | None = None
    command: str = "python -m demo"
    database_url: str | None = None


def prepare(options: Options, talk: Talk) -> Job:
    """The job that the options ask for, its base model and adapters ready to be served and pushed.

    Raises DemoFailed or a SoupError.
    """
    if options.tiny:
        return _packages(talk)
    if options.data and options.adapters:
        return _own(options.data, options.base, options.adapters, talk)
    return _shipped(options.base, talk)


# --- the shipped adapters, on SmolLM2 --------------------------------------------------------------------


def _smollm2(talk: Talk) -> BaseEntry:
    """The demo's own base model, fetched if need be."""
    return _local(smollm2.prepare(MODELS, talk), smollm2.BASE_ID)


def _shipped(base: str | None, talk: Talk) -> Job:
    talk.stage(f"the base model: {smollm2.NAME}")
    if base is None:
        entry = _smollm2(talk)
    else:
        if not Path(base).exists():
            raise DemoFailed(
                f"The shipped adapters fit {smollm2.NAME} as it is in the wheel {smollm2.WHEEL}, and no model of a hub "
                f"(another fingerprint): with BASE={base} give DATA and ADAPTERS of your own, or leave BASE out."
            )
        entry = base_entry(base, talk).model_copy(update={"id": smollm2.BASE_ID})
        found = shape_of(entry, MODELS).fingerprint
        if found != smollm2.FINGERPRINT:
            raise DemoFailed(
                f"The shipped adapters do not fit {base}: they were trained on the model with the fingerprint "
                f"{smollm2.FINGERPRINT[:19]}..., and this one has {found[:19]}.... Leave out BASE, or give DATA and "
                "ADAPTERS of your own with it."
            )
    talk.line(f"in {entry.source}, as {entry.dtype}")
    job = shipped_job(entry)
    talk.stage(f"adapters: {len(job.training)} domains and a control, trained beforehand (demo/domains/README.md)")
    talk.line(", ".join(job.pushed))
    return job


def shipped_job(entry: BaseEntry) -> Job:
    """The job over the shipped adapters and text."""
    names = _domains_of(DOMAINS / "adapters")
    return Job(
        "demo", HOME / "smollm2", DOMAINS, entry, tuple(name for name in names if name != CONTROL),
        _domains_of(DOMAINS / "novel"), CONTROL, DOMAINS / "adapters", strategies=FEW, oracle=False, wall_goal=300.0,
    )  # fmt: skip


# --- the installed packages ------------------------------------------------------------------------------


def _packages(talk: Talk) -> Job:
    talk.stage("text: docstrings of the installed Python packages, one package = one domain")
    job = packages_job()
    with talk.bar("reading") as told:
        packages.write(job.data, told)
    talk.line(f"{len(job.training)} training domains: {', '.join(job.training)}")
    talk.line(f"{len(job.novel)} held back: {', '.join(job.novel)} (seen by neither the base model nor any adapter)")
    talk.stage(f"adapters: {len(job.pushed)} trained on the frozen base model, from one initialisation")
    train_all(job, talk)
    return job


def packages_job() -> Job:
    """The job over the installed packages, on the small base model that is shipped."""
    if not (SHIPPED / "model.safetensors").is_file():
        raise DemoFailed(f"{SHIPPED} holds no base model: `python -m demo.base` makes it.")
    home = HOME / "packages"
    entry = BaseEntry(id=BASE_ID, source=str(SHIPPED.resolve()))
    return Job(
        "demo_tiny", home, home / "text", entry, packages.TRAINING, packages.NOVEL, packages.CONTROL,
        home / "adapters", wall_goal=240.0,
    )  # fmt: skip


# --- people's own data -----------------------------------------------------------------------------------


def _own(data: Path, base: str | None, adapters: Path, talk: Talk) -> Job:
    names = neutral_domains(adapters)
    talk.stage(f"the base model: {base or smollm2.NAME}")
    entry = base_entry(base, talk) if base else _smollm2(talk)
    job = own_job(data, entry, adapters, names)
    talk.stage(f"adapters: {len(names)} of {adapters}, converted")
    convert_all(job, adapters, names, talk)
    return job


def own_job(data: Path, entry: BaseEntry, adapters: Path, names: Sequence[str]) -> Job:
    """The job over people's own data, base model and neutral adapters, of which `names` are there.

    Every training domain needs an adapter. The one adapter that is no training domain is the control; raises
    InvalidParameter where there are several.
    """
    training, novel = _domains_of(data / "train"), _domains_of(data / "novel")
    missing = sorted(set(training) - set(names))
    others = sorted(set(names) - set(training))
    if missing or len(others) > 1:
        what = f"no adapter for {', '.join(missing)}" if missing else f"more than one control: {', '.join(others)}"
        raise InvalidParameter(f"{adapters} does not fit {data / 'train'}: {what}.", param="adapters")
    places = [str(data.resolve()), entry.source, str(adapters.resolve())]
    home = HOME / f"main_job-{hashlib.sha256(chr(10).join(places).encode()).hexdigest()[:8]}"
    kept = LARGE_BASE if weight_bytes(entry) > SMALL_BYTES else {}
    return Job(
        "main_job", home, data, entry, training, novel, others[0] if others else "", home / "adapters",
        strategies=EVERY, **kept,
    )  # fmt: skip


def base_entry(base: str, talk: Talk) -> BaseEntry:
    """The entry of what BASE names: a folder, a GGUF file (converted once), or a hub's id (downloaded once).

    Raises NotFound for a name that is none of these, Unavailable where the hub cannot be reached.
    """
    path = Path(base)
    if path.is_dir():
        return _local(path, path.resolve().name)
    if path.is_file() and path.suffix == ".gguf":
        folder = MODELS / f"{path.stem}-{file_digest(path)[7:15]}"
        if not folder.is_dir():
            talk.line(f"unpacking {path} into {folder} ...")
            gguf.convert(path, folder)
        return _local(folder, path.stem)
    hub = _HUB_ID.fullmatch(base)
    if hub is None or path.exists():
        raise NotFound(
            f"BASE={base} is no directory with a model, no .gguf file and no hub's id like owner/name@revision."
        )
    entry = BaseEntry(id=_part(hub[1].split("/")[1]), source=hub[1], revision=hub[2] or "main")
    talk.line(f"{base} from the model hub, if it is not in the local cache ...")
    return _local(source_folder(entry), entry.id)


def _local(folder: Path, name: str) -> BaseEntry:
    """The entry of a model's folder; weights that are kept in bf16 are computed in it where the processor can."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        config = {}  # what is wrong with the folder is said where it is loaded
    half = "bfloat16" in (config.get("dtype"), config.get("torch_dtype"))
    return BaseEntry(id=_part(name), source=str(folder.resolve()), dtype=best_dtype() if half else "float32")


def _part(name: str) -> str:
    kept = "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "-" for c in name.lower()).lstrip("._-")
    return kept[:64] or "base"


def _domains_of(folder: Path) -> tuple[str, ...]:
    """Names of the domains' folders in `folder`; raises NotFound where there is none."""
    found = sorted(path.name for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []
    if not found:
        raise NotFound(
            f"{folder} holds no domains: DATA needs train/<domain>/ and novel/<domain>/ with .jsonl.gz files."
        )
    return tuple(found)
