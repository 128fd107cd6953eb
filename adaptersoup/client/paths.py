"""Paths of the API, and helpers for requests that both kinds of client send."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from adaptersoup.client.answers import Json, drop_none, path_segment
from registry.errors import InvalidParameter
from registry.names import DigestRef, NameRef, parse_ref

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"


def adapter_path(ref: str) -> str:
    """The path of an adapter; raises InvalidName, or InvalidParameter for a base model."""
    parsed = parse_ref(ref)
    if isinstance(parsed, DigestRef):
        return f"/v1/adapters/{parsed.digest}"
    if not isinstance(parsed, NameRef):
        raise InvalidParameter(f"{ref} is a base model; give an adapter as namespace/name.", param="ref")
    return f"/v1/adapters/{parsed}"


def alias_path(name: str, alias: str) -> str:
    """The path of an alias."""
    return f"{adapter_path(name)}/aliases/{path_segment(alias)}"


def job_path(job_id: str) -> str:
    """The path of a job."""
    return f"/v1/jobs/{path_segment(job_id)}"


def key_path(key_id: str) -> str:
    """The path of a key."""
    return f"/v1/keys/{path_segment(key_id)}"


def namespace_path(namespace: str) -> str:
    """The path of a namespace."""
    return f"/v1/namespaces/{path_segment(namespace)}"


def limits_path(key_id: str | None, namespace: str | None) -> str:
    """The path of the limits of a key or of a namespace; raises InvalidParameter unless exactly one is named."""
    if key_id is not None and namespace is None:
        return f"{key_path(key_id)}/limits"
    if namespace is not None and key_id is None:
        return f"{namespace_path(namespace)}/limits"
    raise InvalidParameter("Limits are those of a key or of a namespace: name one of them.", param="namespace")


def if_match_header(etag: str | None) -> dict[str, str] | None:
    """The header of a change that is refused unless the resource has this etag; None without an etag."""
    return {"if-match": etag} if etag else None


def iso_dates(values: Mapping[str, Any]) -> Json:
    """The values with each datetime as ISO text."""
    return {name: value.isoformat() if isinstance(value, datetime) else value for name, value in values.items()}


def body_of_request(values: Mapping[str, Any]) -> Json:
    """The body of a request: pydantic values as JSON, without the values that are None."""
    return {
        name: value.model_dump(mode="json", exclude_none=True) if hasattr(value, "model_dump") else value
        for name, value in drop_none(values).items()
    }
