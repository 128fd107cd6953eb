"""A cache of a server's LoRAs and bottlenecks: directories by digest, for an engine on the same machine.

Used by `adaptersoup.vllm.plugin`. A directory is written whole or not at all, and its files are compared with the
server's digests each time it is requested. A bottleneck, or a LoRA whose modules differ in rank or scale, has a second
directory with the LoRA that the engine loads.
"""

from __future__ import annotations

import json
import logging
import re
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from adaptersoup.client.answers import Json, architecture_of
from adaptersoup.client.client import SoupClient
from adaptersoup.vllm.lora_files import lora_files, uniform_files
from registry.adapters.bottleneck_lora import kind_of
from registry.adapters.lora_ranks import is_uniform
from registry.errors import Incompatible, InvalidName, InvalidParameter, NotFound, Retired, Unavailable
from registry.formats import CONFIG_FILE, WEIGHTS_FILE, move_into_place, new_directory_beside, place_files
from registry.names import DIGEST_PATTERN, file_digest, sha256_digest
from registry.spec import BottleneckConfig, LoraConfig

log = logging.getLogger("soup.client")

FILES = (CONFIG_FILE, WEIGHTS_FILE)

T = TypeVar("T")


@dataclass(frozen=True)
class CachedLora:
    """The directory of the LoRA that an engine loads, and a name for it that no other CachedLora of the cache has.

    The name is the adapter's digest, followed by `#2`, `#3` and so on if it was requested before, loaded or not.
    """

    name: str
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
        self._locks: dict[str, threading.Lock] = {}
        self._requests: Counter[str] = Counter()
        self._derived: dict[Path, dict[str, str]] = {}
        """Digests of the files in the directories that this process has derived from stored ones."""

    def digest(self, ref: str) -> str | None:
        """The digest of the adapter that a ref means now; None if there is none, or it is retired.

        Raises Unavailable if the server does not answer.
        """
        row = _if_present(self._client.adapter, ref)
        return None if row is None else _digest_of(row)

    def lora(self, ref: str) -> CachedLora | None:
        """The adapter that a ref means now; None if there is none, or it is retired.

        Raises Incompatible for another base model, or state of it, or kind of adapter, Unavailable if the server does
        not answer, and DigestMismatch if the downloaded bytes are damaged.
        """
        return _if_present(self._lora, ref)

    def _lora(self, ref: str) -> CachedLora:
        row = self._client.adapter(ref)
        pinned = str(row["ref"])  # the version this name means now, whatever is pushed meanwhile
        self._check(row)
        digest = _digest_of(row)
        digests = {str(file["name"]): str(file["digest"]) for file in self._client.files(pinned)}
        directory = self._folder / digest.removeprefix("sha256:")
        with self._locks.setdefault(digest, threading.Lock()):
            if not _is_intact(directory, digests):
                self._download(pinned, directory, digests)
            loadable = self._loadable(directory, row["config"])
            self._requests[digest] += 1
            number = self._requests[digest]
        return CachedLora(digest if number == 1 else f"{digest}#{number}", loadable)

    def _check(self, row: Json) -> None:
        if row["base_model"] != self._base_model:
            raise Incompatible(
                f"{row['ref']} is an adapter of base model '{row['base_model']}', and this engine serves "
                f"'{self._base_model}'."
            )
        try:
            fingerprint = self._client.base_model(self._base_model)["fingerprint"]
        except NotFound:  # it is no longer on the allowlist: there is no other state to compare with
            fingerprint = row["base_fingerprint"]
        if row["base_fingerprint"] != fingerprint:
            raise Incompatible(
                f"{row['ref']} was made for another state of base model '{self._base_model}' "
                f"({row['base_fingerprint'][:19]} and not {fingerprint[:19]}): train it again, and push it."
            )
        config = row["config"]
        if config["method"] == "bottleneck":
            kind = kind_of(BottleneckConfig.model_validate(config)).name
            if kind not in self._kinds:
                raise Incompatible(
                    f"{row['ref']} is a bottleneck of the kind '{kind}'; this engine serves "
                    f"{', '.join(self._kinds) or 'none'}: start it with SOUP_VLLM_BOTTLENECKS={kind}."
                )
        elif config["method"] != "lora" or config.get("pruned"):  # not all methods have the field
            kind = f"{'pruned ' if config.get('pruned') else ''}{config['method']}"
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
            if not _is_intact(directory, digests):  # another engine may have put it there meanwhile, and read it
                shutil.rmtree(directory, ignore_errors=True)  # damaged, if it exists
                move_into_place(partial, directory, replace=True)
        finally:
            shutil.rmtree(partial, ignore_errors=True)

    def _loadable(self, stored: Path, config: dict[str, Any]) -> Path:
        """The directory with the engine's LoRA: the stored one, or one beside it; written if its files differ.

        The files are computed once in a process: they depend on the stored bytes, and on the release of this package.
        """
        lora = LoraConfig.model_validate(config) if config["method"] == "lora" else None
        if lora is not None and is_uniform(lora):
            return stored
        directory = stored.with_name(f"{stored.name}-lora")
        if directory in self._derived and _is_intact(directory, self._derived[directory]):
            return directory
        weights = (stored / WEIGHTS_FILE).read_bytes()
        if lora is not None:
            files = uniform_files(lora, weights, json.loads((stored / CONFIG_FILE).read_bytes()))
        else:
            model_type = architecture_of(self._client.base_model(self._base_model))["model_type"]
            files = lora_files(BottleneckConfig.model_validate(config), weights, model_type)
        self._derived[directory] = {name: sha256_digest(data) for name, data in files.items()}
        if not _is_intact(directory, self._derived[directory]):
            place_files(directory, files, replace=True)
        return directory


def _if_present(read: Callable[[str], T], ref: str) -> T | None:
    """The answer for a ref; None if the server has no such adapter, or has no more while it is read."""
    try:
        return read(ref)
    except (InvalidName, InvalidParameter, NotFound, Retired) as error:
        log.info("%s", error.message)
        return None


def _digest_of(row: Json) -> str:
    """The digest of an adapter, which is part of a path; raises Unavailable if the server's answer has no valid one."""
    digest = str(row["digest"])
    if not re.fullmatch(DIGEST_PATTERN, digest):
        raise Unavailable(f"The server gives {row['ref']} an invalid digest; it may be another kind of server.")
    return digest


def _is_intact(directory: Path, digests: dict[str, str]) -> bool:
    """Return True if a directory has the files of an adapter, with these digests."""
    return all((directory / name).is_file() and file_digest(directory / name) == digests.get(name) for name in FILES)
