"""LoRA adapters and LoRA soups of a server as directories in a folder, by their digest: what an engine beside it loads.

Used by `adaptersoup.client.vllm_plugin`. A directory is there whole or not at all, and its bytes are compared with the
digests that the server gives for them each time it is asked for: what lies there is never taken for what was meant.
"""

from __future__ import annotations

import hashlib
import logging
import shutil
import threading
from pathlib import Path

from adaptersoup.client.answers import Json
from adaptersoup.client.client import SoupClient
from registry.errors import Incompatible, InvalidName, InvalidParameter, NotFound, Retired, Unavailable
from registry.formats import CONFIG_FILE, WEIGHTS_FILE, move_into_place, new_directory_beside

log = logging.getLogger(__name__)

FILES = (CONFIG_FILE, WEIGHTS_FILE)


class LoraCache:
    """LoRAs of one base model: `base_model` is its id on the server, `folder` where their directories are kept."""

    def __init__(self, client: SoupClient, folder: Path, *, base_model: str) -> None:
        self._client = client
        self._folder = folder
        self._base_model = base_model
        self._writing = threading.Lock()

    def directory(self, ref: str) -> Path | None:
        """The directory of the LoRA that a ref means now, None where it means none, or one that is gone.

        Raises Incompatible for one of another base model or kind, Unavailable where the server does not answer, and
        DigestMismatch where other bytes arrive than were meant.
        """
        try:
            row = self._client.adapter(ref)
            pinned = str(row["ref"])  # the version this name means now, whatever is pushed meanwhile
            digests = {str(file["name"]): str(file["digest"]) for file in self._client.files(pinned)}
        except (InvalidName, InvalidParameter, NotFound, Retired) as error:
            log.info("%s", error.message)
            return None
        self._check(row)
        place = self._folder / str(row["digest"]).removeprefix("sha256:")
        with self._writing:
            if not _holds(place, digests):
                self._fetch(pinned, place, digests)
        return place

    def _check(self, row: Json) -> None:
        if row["base_model"] != self._base_model:
            raise Incompatible(
                f"{row['ref']} is an adapter of base model '{row['base_model']}', and this engine serves "
                f"'{self._base_model}'."
            )
        config = row["config"]
        if config["method"] != "lora" or config["pruned"]:
            kind = f"{'pruned ' if config['pruned'] else ''}{config['method']}"
            raise Incompatible(f"{row['ref']} is of the kind '{kind}'; this engine loads LoRAs that are not pruned.")

    def _fetch(self, pinned: str, place: Path, digests: dict[str, str]) -> None:
        missing = [name for name in FILES if name not in digests]
        if missing:
            raise Unavailable(f"The server offers no {missing[0]} for {pinned}; it may be another kind of server.")
        beside = new_directory_beside(place)
        try:
            for name in FILES:
                self._client.download(pinned, name, beside / name, digest=digests[name])
            shutil.rmtree(place, ignore_errors=True)  # what is there is damaged
            move_into_place(beside, place, replace=True)  # unless another engine has just put it there
        finally:
            shutil.rmtree(beside, ignore_errors=True)


def _holds(place: Path, digests: dict[str, str]) -> bool:
    """Whether a directory has the files, with these digests."""
    return all((place / name).is_file() and _sha256(place / name) == digests.get(name) for name in FILES)


def _sha256(file: Path) -> str:
    with file.open("rb") as opened:
        return f"sha256:{hashlib.file_digest(opened, 'sha256').hexdigest()}"
