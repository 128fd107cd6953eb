"""A cache of a server's LoRAs and bottlenecks: directories by digest, for an engine on the same machine.

Used by `adaptersoup.vllm.plugin`. A directory is written whole or not at all, and its bytes are compared with the
server's digests each time it is requested. A bottleneck has a second one, which the engine loads: it as a LoRA.
"""

from __future__ import annotations

import logging
import shutil
import threading
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adaptersoup.client.answers import Json, architecture_of
from adaptersoup.client.client import SoupClient
from adaptersoup.vllm.lora_files import lora_files
from registry.adapters.bottleneck_lora import kind_of
from registry.errors import Incompatible, InvalidName, InvalidParameter, NotFound, Retired, Unavailable
from registry.formats import CONFIG_FILE, WEIGHTS_FILE, move_into_place, new_directory_beside, place_files
from registry.names import file_digest
from registry.spec import BottleneckConfig

log = logging.getLogger("soup.client")

FILES = (CONFIG_FILE, WEIGHTS_FILE)


@dataclass(frozen=True)
class CachedLora:
    """An adapter's digest, and the directory of the LoRA that an engine loads."""

    digest: str
    directory: Path


class LoraCache:
    """Adapters of one base model, with its id `base_model` on the server; `folder` holds their directories.

    `kinds` names the kinds of bottlenecks that the engine has layers for.
    """

    def __init__(
        self, client: SoupClient, folder: Path, *, base_model: str, kinds: Collection[str] = frozenset()
    ) -> None:
        self._client = client
        self._folder = folder
        self._base_model = base_model
        self._kinds = kinds
        self._writing = threading.Lock()

    def digest(self, ref: str) -> str | None:
        """The digest of the adapter that a ref means now; None if there is none, or it is retired.

        Raises Unavailable if the server does not answer.
        """
        row = self._row(ref)
        return None if row is None else str(row["digest"])

    def lora(self, ref: str) -> CachedLora | None:
        """The adapter that a ref means now; None if there is none, or it is retired.

        Raises Incompatible for another base model or kind of adapter, Unavailable if the server does not answer, and
        DigestMismatch if the downloaded bytes are damaged.
        """
        row = self._row(ref)
        if row is None:
            return None
        pinned = str(row["ref"])  # the version this name means now, whatever is pushed meanwhile
        self._check(row)
        digests = {str(file["name"]): str(file["digest"]) for file in self._client.files(pinned)}
        directory = self._folder / str(row["digest"]).removeprefix("sha256:")
        with self._writing:
            if not _is_intact(directory, digests):
                self._download(pinned, directory, digests)
            if row["config"]["method"] == "bottleneck":
                directory = self._bottleneck(directory, row["config"])
        return CachedLora(str(row["digest"]), directory)

    def _row(self, ref: str) -> Json | None:
        try:
            return self._client.adapter(ref)
        except (InvalidName, InvalidParameter, NotFound, Retired) as error:
            log.info("%s", error.message)
            return None

    def _check(self, row: Json) -> None:
        if row["base_model"] != self._base_model:
            raise Incompatible(
                f"{row['ref']} is an adapter of base model '{row['base_model']}', and this engine serves "
                f"'{self._base_model}'."
            )
        config = row["config"]
        if config["method"] == "bottleneck":
            kind = kind_of(BottleneckConfig.model_validate(config)).name
            if kind not in self._kinds:
                raise Incompatible(
                    f"{row['ref']} is a bottleneck of the kind '{kind}'; this engine serves "
                    f"{', '.join(self._kinds) or 'none'}: start it with SOUP_VLLM_BOTTLENECKS={kind}."
                )
        elif config["method"] != "lora" or config["pruned"]:
            kind = f"{'pruned ' if config['pruned'] else ''}{config['method']}"
            raise Incompatible(
                f"{row['ref']} is of the kind '{kind}'; this engine loads bottlenecks, and LoRAs that are not pruned."
            )

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

    def _bottleneck(self, stored: Path, config: dict[str, Any]) -> Path:
        """The directory beside a stored bottleneck's that has it as a LoRA; written if its files differ."""
        model_type = architecture_of(self._client.base_model(self._base_model))["model_type"]
        weights = (stored / WEIGHTS_FILE).read_bytes()
        files = lora_files(BottleneckConfig.model_validate(config), weights, model_type)
        directory = stored.with_name(f"{stored.name}-lora")
        if not all((directory / name).is_file() and (directory / name).read_bytes() == files[name] for name in files):
            place_files(directory, files, replace=True)
        return directory


def _is_intact(directory: Path, digests: dict[str, str]) -> bool:
    """Return True if a directory has the files of an adapter, with these digests."""
    return all((directory / name).is_file() and file_digest(directory / name) == digests.get(name) for name in FILES)
