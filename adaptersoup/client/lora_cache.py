"""A cache of LoRA adapters and LoRA soups of a server: directories by digest, for an engine on the same machine.

Used by `adaptersoup.client.vllm_plugin`. A directory is written whole or not at all, and its bytes are compared with
the server's digests each time it is requested.
"""

from __future__ import annotations

import logging
import shutil
import threading
from pathlib import Path

from adaptersoup.client.answers import Json
from adaptersoup.client.client import SoupClient
from registry.errors import Incompatible, InvalidName, InvalidParameter, NotFound, Retired, Unavailable
from registry.formats import CONFIG_FILE, WEIGHTS_FILE, move_into_place, new_directory_beside
from registry.names import file_digest

log = logging.getLogger("soup.client")

FILES = (CONFIG_FILE, WEIGHTS_FILE)


class LoraCache:
    """LoRAs of one base model, with its id `base_model` on the server; `folder` holds their directories."""

    def __init__(self, client: SoupClient, folder: Path, *, base_model: str) -> None:
        self._client = client
        self._folder = folder
        self._base_model = base_model
        self._writing = threading.Lock()

    def directory(self, ref: str) -> Path | None:
        """The directory of the LoRA that a ref means now; None if there is none, or it is retired.

        Raises Incompatible for another base model or kind of adapter, Unavailable if the server does not answer, and
        DigestMismatch if the downloaded bytes are damaged.
        """
        try:
            row = self._client.adapter(ref)
            pinned = str(row["ref"])  # the version this name means now, whatever is pushed meanwhile
            digests = {str(file["name"]): str(file["digest"]) for file in self._client.files(pinned)}
        except (InvalidName, InvalidParameter, NotFound, Retired) as error:
            log.info("%s", error.message)
            return None
        self._check(row)
        directory = self._folder / str(row["digest"]).removeprefix("sha256:")
        with self._writing:
            if not _is_intact(directory, digests):
                self._download(pinned, directory, digests)
        return directory

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

    def _download(self, pinned: str, directory: Path, digests: dict[str, str]) -> None:
        missing = [name for name in FILES if name not in digests]
        if missing:
            raise Unavailable(f"The server offers no {missing[0]} for {pinned}; it may be another kind of server.")
        partial = new_directory_beside(directory)
        try:
            for name in FILES:
                self._client.download(pinned, name, partial / name, digest=digests[name])
            shutil.rmtree(directory, ignore_errors=True)  # damaged, if it exists
            move_into_place(partial, directory, replace=True)  # another engine may have put it there meanwhile
        finally:
            shutil.rmtree(partial, ignore_errors=True)


def _is_intact(directory: Path, digests: dict[str, str]) -> bool:
    """Return True if a directory has the files of a LoRA, with these digests."""
    return all((directory / name).is_file() and file_digest(directory / name) == digests.get(name) for name in FILES)
