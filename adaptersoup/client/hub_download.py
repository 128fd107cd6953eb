"""Downloads of adapter directories from a model hub: `hub:OWNER/NAME[@revision]`.

The hub is that of HF_ENDPOINT, with the token of HF_TOKEN, or the defaults of `huggingface_hub`; the files stay in its
cache. Only the files of an adapter directory are downloaded, and none of them if one is larger than a server accepts by
default, or of unknown size.
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
from registry.spec.limits import SizeLimits

MOST_BYTES = {
    CONFIG_FILE: MAX_JSON_BYTES,
    WEIGHTS_FILE: SizeLimits.weights_bytes,
    SOUP_FILE: MAX_JSON_BYTES,
    CARD_FILE: MAX_JSON_BYTES,
    SAMPLES_FILE: SizeLimits.sample_bytes,
    EMBEDDINGS_FILE: SizeLimits.embeddings_bytes,
}
"""The files of an adapter directory, and the most bytes of each that a server with default settings accepts."""
FILES = tuple(MOST_BYTES)
COMMIT = re.compile(r"[0-9a-f]{40}", re.ASCII)


@contextmanager
def directories(sources: Sequence[Path]) -> Iterator[tuple[list[Path], dict[Path, SoupError]]]:
    """Local directories for these sources until `with` ends: each `hub:` is downloaded, others are unchanged.

    A downloaded directory has the name of its repository. A directory whose download failed does not exist; the errors
    are returned by directory. Raises InvalidName for a source that names no repository.
    """
    local: list[Path] = []
    errors: dict[Path, SoupError] = {}
    parsed = [split_hub(str(source)) if is_hub(source) else None for source in sources]  # before any is downloaded
    with ExitStack() as stack:
        for source, repository_and_revision in zip(sources, parsed, strict=True):
            if repository_and_revision is None:
                local.append(source)
                continue
            repository, revision = repository_and_revision
            parent = Path(stack.enter_context(TemporaryDirectory(prefix="soup-hub-")))
            directory = parent / repository.rpartition("/")[2]
            local.append(directory)
            try:
                _download(str(source), repository, revision, directory)
            except SoupError as error:
                errors[directory] = error
        yield local, errors


def _download(source: str, repository: str, revision: str | None, directory: Path) -> None:
    """Download a repository, and link its files into the new `directory`."""
    snapshot = _snapshot(source, repository, revision)
    directory.mkdir()
    for name in FILES:
        if (snapshot / name).is_file():
            (directory / name).symlink_to((snapshot / name).resolve())
    if not any(directory.iterdir()):
        raise NotFound(f"{source} has none of the files of an adapter directory ({', '.join(FILES)}).")
    _record_origin(directory, f"{repository}@{snapshot.name}")


def _record_origin(directory: Path, origin: str) -> None:
    """Write `origin` into the provenance of a directory, over an origin that its files claim.

    A directory that cannot be read is left unchanged: its next reader refuses it with the reason.
    """
    config = _read_object(directory / CONFIG_FILE)
    if config is None:
        return
    target = directory / (SOUP_FILE if "peft_type" in config else CONFIG_FILE)
    values = _read_object(target) if target.exists() else {}
    provenance = None if values is None else values.get("provenance", {})
    training = provenance.get("training", {}) if isinstance(provenance, dict) else None
    if values is None or not isinstance(provenance, dict) or not isinstance(training, dict):
        return
    values["provenance"] = {**provenance, "training": {**training, "imported_from": origin}}
    target.unlink(missing_ok=True)  # a link into the client's cache
    target.write_bytes(config_json(values))


def _read_object(file: Path) -> dict[str, Any] | None:
    """The JSON object in a file; None if there is none that can be read."""
    try:
        value = loads_strict(file.read_bytes())
    except (InvalidManifest, FileNotFoundError):
        return None
    return value if isinstance(value, dict) else None


def _snapshot(source: str, repository: str, revision: str | None) -> Path:
    """The folder of a repository in the client's cache, named by its commit; raises a SoupError if it cannot be had."""
    try:
        if not is_offline_mode():  # offline, the cache's copy is used unchecked
            revision = _checked_commit(source, repository, revision)
        return Path(snapshot_download(repository, revision=revision, allow_patterns=list(FILES)))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OfflineModeIsEnabled) as error:
        raise _soup_error(source, error) from error
    except (httpx2.HTTPError, XetDownloadError, OSError) as error:
        raise Unavailable(f"{source} could not be downloaded: {_first_line(error)}.") from error


def _checked_commit(source: str, repository: str, revision: str | None) -> str:
    """The commit that a revision means now, with its file sizes checked.

    Raises TooLarge, Unavailable, Forbidden, and the errors of the hub's client.
    """
    try:
        info = HfApi().model_info(repository, revision=revision, files_metadata=True)
    except HFValidationError:
        raise
    except UnicodeEncodeError:
        raise Forbidden(f"{source}: the token of HF_TOKEN holds characters a header cannot carry.") from None
    except (AttributeError, LookupError, TypeError, ValueError) as error:  # `huggingface_hub` checks no answer
        raise Unavailable(f"{source} could not be downloaded: the server of HF_ENDPOINT is no hub.") from error
    if not COMMIT.fullmatch(info.sha or ""):  # the cache uses it as the name of a folder
        raise Unavailable(f"{source} could not be downloaded: the hub does not name its commit.")
    for file in info.siblings or ():
        max_bytes = MOST_BYTES.get(file.rfilename)
        if max_bytes is not None and (file.size is None or file.size > max_bytes):
            size = "an unknown number of" if file.size is None else file.size
            raise TooLarge(
                f"{source}: {file.rfilename} has {size} bytes, and at most {max_bytes} are downloaded: "
                "download it with `hf download` if you trust it, and push the folder.",
                param="hub",
            )
    return str(info.sha)


def _soup_error(source: str, error: Exception) -> SoupError:
    """The SoupError for an error of the hub's client."""
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
