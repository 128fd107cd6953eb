"""Adapter directories of a model hub: `hub:OWNER/NAME[@revision]`, downloaded here and read like any other directory.

The hub is the one of HF_ENDPOINT, with the token of HF_TOKEN, or else whatever `huggingface_hub` takes; the files stay
in its cache. Only the files of an adapter directory are downloaded, whatever else a repository holds.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx2
from huggingface_hub import snapshot_download
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

from registry.errors import Forbidden, InvalidName, NotFound, SoupError, Unavailable
from registry.formats import CARD_FILE, CONFIG_FILE, EMBEDDINGS_FILE, SAMPLES_FILE, SOUP_FILE, WEIGHTS_FILE
from service.client.hub_names import is_hub, split_hub

FILES = (CONFIG_FILE, WEIGHTS_FILE, SOUP_FILE, CARD_FILE, SAMPLES_FILE, EMBEDDINGS_FILE)


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
    if _is_pefts_alone(found):
        origin = {"provenance": {"training": {"imported_from": f"{repository}@{snapshot.name}"}}}
        (found / SOUP_FILE).write_text(json.dumps(origin))
    return found


def _is_pefts_alone(found: Path) -> bool:
    """Whether a directory is PEFT's and nobody has said where it is from."""
    config = found / CONFIG_FILE
    return not (found / SOUP_FILE).exists() and config.exists() and b'"peft_type"' in config.read_bytes()


def _snapshot(source: str, repository: str, revision: str | None) -> Path:
    """The folder of a repository in the client's cache, which is called after the commit; raises what went wrong."""
    try:
        return Path(snapshot_download(repository, revision=revision, allow_patterns=list(FILES)))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OfflineModeIsEnabled) as error:
        raise _told(source, error) from error
    except (httpx2.HTTPError, XetDownloadError, OSError) as error:
        raise Unavailable(f"{source} could not be downloaded: {_first_line(error)}.") from error


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
