"""Prepares the requested job: its base model and adapters, ready to be served and pushed.

A user's own adapters have the neutral form of ../shared/adapters: `<domain>/adapter.safetensors` with
`layers.<i>.{norm,down,up}.{weight,bias}` and `<domain>/adapter.json` with the recipe; `initial.safetensors` in the same
folder has the initial tensors of all adapters.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from demo.base_models import BASE_ID, FINGERPRINT, MODELS, NAME, WHEEL, base_entry, smollm2
from demo.job import Job, own_job, shipped_job
from demo.server import DemoFailed
from demo.talk import Talk
from registry.adapters.weights import init_hash, load_tensors, save_tensors
from registry.base_model import shape_of
from registry.errors import InvalidManifest, InvalidWeights, NotFound
from registry.formats import AdapterContents, AdapterDirectory, write_directory
from registry.spec import BaseEntry, BottleneckConfig, Card, Provenance

INITIAL = "initial.safetensors"
_NEUTRAL = re.compile(r"layers\.(\d+)\.(norm|down|up)\.(weight|bias)")


def prepare(data: Path | None, base: str | None, adapters: Path | None, talk: Talk) -> Job:
    """The job with the user's own data and adapters, or with the shipped ones; raises DemoFailed or a SoupError."""
    if data is None or adapters is None:
        return _shipped(base, talk)
    names = neutral_domains(adapters)
    talk.stage(f"the base model: {base or NAME}")
    job = own_job(data, base_entry(base, talk) if base else smollm2(talk), adapters, names)
    talk.stage(f"adapters: {len(names)} of {adapters}, converted")
    convert_all(job, adapters, names, talk)
    return job


def _shipped(base: str | None, talk: Talk) -> Job:
    talk.stage(f"the base model: {NAME}")
    entry = smollm2(talk) if base is None else _fitting(base, talk)
    talk.line(f"in {entry.source}, as {entry.dtype}")
    job = shipped_job(entry)
    talk.stage(f"adapters: {len(job.training)} domains and a control, trained beforehand (demo/domains/README.md)")
    talk.line(", ".join(job.pushed))
    return job


def _fitting(base: str, talk: Talk) -> BaseEntry:
    """A base model on this machine that the shipped adapters fit; raises DemoFailed for any other."""
    requirement = f"The shipped adapters fit {NAME} as it is in the wheel {WHEEL}, and not {base}"
    if not Path(base).exists():
        raise DemoFailed(
            f"{requirement}, which is no file here: give DATA and ADAPTERS of your own with it, or no BASE."
        )
    entry = base_entry(base, talk).model_copy(update={"id": BASE_ID})
    fingerprint = shape_of(entry, MODELS).fingerprint
    if fingerprint != FINGERPRINT:
        raise DemoFailed(
            f"{requirement}: its fingerprint is {fingerprint[:19]}..., and theirs {FINGERPRINT[:19]}.... "
            "Give DATA and ADAPTERS of your own with it, or no BASE."
        )
    return entry


# --- neutral adapters --------------------------------------------------------------------------------------


def neutral_domains(folder: Path) -> list[str]:
    """The names of the adapters in a neutral folder; raises NotFound if there are none."""
    names = sorted(path.parent.name for path in folder.glob("*/adapter.safetensors"))
    if not names:
        raise NotFound(f"{folder} holds no <domain>/adapter.safetensors: it is not a folder of neutral adapters.")
    return names


def convert_all(job: Job, source: Path, names: Sequence[str], talk: Talk) -> None:
    """Convert every neutral adapter; adapters of training domains get a sample."""
    fingerprint = shape_of(job.base, job.home / "cache").fingerprint
    shutil.rmtree(job.adapters, ignore_errors=True)
    with talk.bar("converting") as report:
        for number, name in enumerate(names):
            report(number, len(names), name)
            convert(
                source,
                name,
                job.adapters / name,
                base_model=job.base.id,
                base_fingerprint=fingerprint,
                texts=None if name == job.control else job.training_sample(name),
            )
    talk.line(f"{len(names)} adapters converted")


def convert(
    source: Path, domain: str, target: Path, *, base_model: str, base_fingerprint: str, texts: Sequence[str] | None
) -> AdapterDirectory:
    """Write one neutral adapter as an adapter directory, with `texts` as its sample.

    `init_hash` is computed from `initial.safetensors`; without that file the initialisation is unknown. Raises
    NotFound, InvalidManifest and InvalidWeights.
    """
    about = _about(source / domain / "adapter.json")
    return write_directory(
        target,
        AdapterContents(
            config=BottleneckConfig(
                structure="bapna_firat", bottleneck=int(about["bottleneck"]), activation=about.get("activation", "relu")
            ),
            domain=domain,
            weights=save_tensors(_tensors(source / domain / "adapter.safetensors")),
            base_model=base_model,
            base_fingerprint=base_fingerprint,
            provenance=_provenance(source, about),
            texts=texts,
            card=Card(description=f"Converted from the neutral adapter {source.name}/{domain}."),
        ),
        replace=True,
    )


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as problem:
        raise NotFound(f"{path} cannot be read: {problem.strerror}.") from None


def _tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a file under the canonical names of a Bapna-Firat adapter."""
    renamed = {}
    for name, tensor in load_tensors(_read(path)).items():
        match = _NEUTRAL.fullmatch(name)
        if match is None:
            raise InvalidWeights(f"Tensor {name[:80]!r} is not one of the neutral form's.", param="weights")
        renamed[f"layers.{match[1]}.ffn.{match[2]}.{match[3]}"] = tensor
    return renamed


def _about(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(_read(path))
    except ValueError as problem:
        raise InvalidManifest(f"{path} is not JSON: {problem}.") from None
    if not isinstance(value, dict) or value.get("structure") != "bapna_firat":
        raise InvalidManifest(f"{path} does not describe a Bapna-Firat adapter, the only neutral structure.")
    return value


def _provenance(source: Path, about: Mapping[str, Any]) -> Provenance:
    if not (source / INITIAL).is_file():
        return Provenance(training=dict(about))
    return Provenance(
        init_hash=init_hash(_tensors(source / INITIAL)),
        init_source="declared",
        init_seed=about.get("init_seed"),
        training=dict(about),
    )
