"""Bodies of `/v1/namespaces`."""

from __future__ import annotations

from typing import Literal

from registry.spec import TuningSetting
from registry.spec.frozen import Frozen
from service.http.schemas.wire import Wire


class Namespace(Wire):
    """The settings of a namespace."""

    object: Literal["namespace"] = "namespace"
    namespace: str
    tuning: TuningSetting
    """Whether soups may be tuned in it."""
    etag: str


class NamespacePatch(Frozen):
    """What is to change of a namespace's settings."""

    tuning: TuningSetting
    """`forbid` refuses effort `tune`, `allow` leaves it to the request, `default` takes it for requests that are to be
    verified and name no effort, selector or recipe."""
