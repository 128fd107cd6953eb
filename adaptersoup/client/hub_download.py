"""Adapter directories of a model hub: `hub:OWNER/NAME[@revision]`, downloaded here and read like any other directory.

The hub is the one of HF_ENDPOINT, with the token of HF_TOKEN, or else whatever `huggingface_hub` takes; the files stay
in its cache. Only the files of an adapter directory are downloaded, whatever else a repository holds, and none of them
where the hub says that one is larger than a server takes, or does not say how large it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx2
from huggingface_hub import HfApi, snapshot_download
from huggingface_hub.constants import is_offline_mode
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
    XetDownloadError,
)

from adaptersoup.client.hub_names import is_hub, split_hub
from registry.errors import Forbidden, InvalidManifest, InvalidName, NotFound, SoupError, TooLarge, Unavailable
from registry.files import loads_strict
from registry.formats import CARD_FILE, CONFIG_FILE, EMBEDDINGS_FILE, SAMPLES_FILE, SOUP_FILE, WEIGHTS_FILE
from registry.formats.directory import MAX_JSON_BYTES, config_json

MIB = 1024 * 1024
MOST_BYTES = {
    CONFIG_FILE: MAX_JSON_BYTES,
    WEIGHTS_FILE: 1024 * MIB,
    SOUP_FILE: MAX_JSON_BYTES,
    CARD_FILE: MAX_JSON_BYTES,
    SAMPLES_FILE: 16 * MIB,
    EMBEDDINGS_FILE: 64 * MIB,
}
"""The files of an adapter directory, and the most bytes of each: what a server takes that nobody has set otherwise."""
FILES = tuple(MOST_BYTES)
COMMIT = re.compile(r"[0-9a-f]{40}", re.ASCII)


@contextmanager
def directories(sources: Sequence[Path]) -> Iterator[list[Path]]:
    """While open, the same with a directory in the place of each `hub:`; it is called as the repository is."""
    with ExitStack() as stack:
        found = []
        for source in sources:
            if is_hub(source):
                folder = Path(stack.enter_context(TemporaryDirectory(prefix="soup-hub-")))
                found.append(_directory(str(source), folder))
            else:
                found.append(source)
        yield found


def _directory(source: str, folder: Path) -> Path:
    """The files of a repository below `folder`, as links into the cache."""
    repository, revision = split_hub(source)
    snapshot = _snapshot(source, repository, revision)
    found = folder / repository.rpartition("/")[2]
    found.mkdir()
    for name in FILES:
        if (snapshot / name).is_file():
            (found / name).symlink_to((snapshot / name).resolve())
    if not any(found.iterdir()):
        raise NotFound(f"{source} has none of the files of an adapter directory ({', '.join(FILES)}).")
    _say_origin(found, f"{repository}@{snapshot.name}")
    return found


def _say_origin(found: Path, origin: str) -> None:
    """Write into a directory where it is from, whatever its own files say of that.

    One that cannot be read is left as it is: whoever reads it next refuses it, and says why.
    """
    config = _mapping(found / CONFIG_FILE)
    if config is None:
        return
    target = found / (SOUP_FILE if "peft_type" in config else CONFIG_FILE)
    said = _mapping(target) if target.exists() else {}
    provenance = None if said is None else said.get("provenance", {})
    training = provenance.get("training", {}) if isinstance(provenance, dict) else None
    if said is None or not isinstance(provenance, dict) or not isinstance(training, dict):
        return
    said["provenance"] = {**provenance, "training": {**training, "imported_from": origin}}
    target.unlink(missing_ok=True)  # a link into the client's cache
    target.write_bytes(config_json(said))


def _mapping(file: Path) -> dict[str, Any] | None:
    """The values of a JSON file by name; None where it has none that can be read."""
    try:
        said = loads_strict(file.read_bytes())
    except (InvalidManifest, FileNotFoundError):
        return None
    return said if isinstance(said, dict) else None


def _snapshot(source: str, repository: str, revision: str | None) -> Path:
    """The folder of a repository in the client's cache, which is called after the commit; raises what went wrong."""
    try:
        if not is_offline_mode():  # else what the cache has is taken
            revision = _checked_commit(source, repository, revision)
        return Path(snapshot_download(repository, revision=revision, allow_patterns=list(FILES)))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OfflineModeIsEnabled) as error:
        raise _told(source, error) from error
    except (httpx2.HTTPError, XetDownloadError, OSError) as error:
        raise Unavailable(f"{source} could not be downloaded: {_first_line(error)}.") from error


def _checked_commit(source: str, repository: str, revision: str | None) -> str:
    """The commit that a revision means now, none of whose files is too large.

    Raises TooLarge, Unavailable, and what the client raises.
    """
    info = HfApi().model_info(repository, revision=revision, files_metadata=True)
    if not COMMIT.fullmatch(info.sha or ""):  # it becomes the name of a folder
        raise Unavailable(f"{source} could not be downloaded: the hub does not say which commit it is.")
    for file in info.siblings or ():
        most = MOST_BYTES.get(file.rfilename)
        if most is not None and (file.size is None or file.size > most):
            size = "an unknown number of" if file.size is None else file.size
            raise TooLarge(
                f"{source}: {file.rfilename} has {size} bytes, and at most {most} are downloaded: "
                "download it with `hf download` if you trust it, and push the folder.",
                param="hub",
            )
    return str(info.sha)


def _told(source: str, error: Exception) -> SoupError:
    """An error of the hub's client as one of ours."""
    if isinstance(error, HFValidationError):
        return InvalidName(f"{source} names no repository: {_first_line(error)}", param="hub")
    if isinstance(error, GatedRepoError):
        return Forbidden(f"{source} is gated: ask for access on the hub, and give its token as HF_TOKEN.")
    if isinstance(error, RevisionNotFoundError):
        return NotFound(f"{source}: the repository has no such revision.", param="hub")
    if isinstance(error, RepositoryNotFoundError):
        return NotFound(
            f"{source} is not there, or the token of HF_TOKEN may not read it; the hub asked is that of HF_ENDPOINT.",
            param="hub",
        )
    return Unavailable(f"{source} could not be downloaded: {_first_line(error)}")


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0].rstrip(".") or type(error).__name__
