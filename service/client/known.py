"""Whether a server has an adapter already, as it would be pushed: by the digests of its weights and of its sample.

Called by `service.client.transfer` for one of many, so that a push that was broken off goes on where it ended. Only
what is certainly the same is known here; in doubt it is pushed, and the server says.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter, ValidationError

from registry.files import encode_lines
from registry.formats import EmbeddingsNote
from registry.names import sha256_digest
from registry.sample_draw import draw
from registry.spec import AdapterConfig, Card, Manifest, Provenance
from service.client.answers import Json
from service.client.client import SoupClient

_CONFIG: TypeAdapter[AdapterConfig] = TypeAdapter(AdapterConfig)


@dataclass(frozen=True)
class There:
    """A version that a server has: its Adapter object, and whether what a push says of it is what is stored.

    `blobs` are the digests of its weights and of its sample, where that is of the push.
    """

    adapter: Json
    is_said_alike: bool
    blobs: tuple[str, ...]


def same_there(
    client: SoupClient, manifest: Manifest, weights: str, texts: Sequence[str] | EmbeddingsNote | None
) -> There | None:
    """The live version of this name that has the bytes of a push; None where there may be none.

    `weights` is the digest of the file. Where what is said of the adapter is not the same, it has to be pushed, so that
    the server's warning about what stays as it is stored is heard; the owner, which can be changed without the bytes,
    is not looked at, nor is with which torch and on how many threads the same bytes were trained.
    """
    for row in client.adapters(name=manifest.name, kind="adapter"):
        if row.get("weights_blob") == weights and _same_sample(row, texts):
            whole = client.adapter(str(row["ref"]))
            sample = () if texts is None else (str(row["sample"]["digest"]),)
            return There(whole, _said_alike(whole, manifest), (weights, *sample))
    return None


def _same_sample(row: Json, texts: Sequence[str] | EmbeddingsNote | None) -> bool:
    """Whether a push with this sample would leave the stored one: texts are compared as the server keeps them."""
    if texts is None:
        return True
    if isinstance(texts, EmbeddingsNote) or row.get("sample_state") not in ("ready", "pending"):
        return False
    stored = row.get("sample") or {}
    filled = list(dict.fromkeys(text for text in texts if text.strip()))
    kept, _ = draw(filled, int(stored.get("kept") or len(filled)))  # as many as the server drew, if it did
    return stored.get("digest") == sha256_digest(encode_lines(kept))


def _said_alike(row: Json, manifest: Manifest) -> bool:
    try:
        stored: dict[str, Any] = {
            "domain": row["domain"],
            "config": _CONFIG.validate_python(row["config"]),
            "card": Card.model_validate(row["card"]),
            "provenance": Provenance.model_validate(row["provenance"]).compared,
        }
    except (KeyError, ValidationError):  # of another version of the server
        return False
    said = manifest.model_copy(update={"provenance": manifest.provenance.compared})
    alike = all(getattr(said, name) == value for name, value in stored.items())
    base = manifest.base_model in (None, row["base_model"])
    return alike and base and manifest.base_fingerprint in (None, row["base_fingerprint"])
