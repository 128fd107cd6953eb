"""What may be done next with what a call has made, as OpenAPI's links: the id in an answer is a part of the next path.

`docs_page` puts them into the document. Programs that read it, the schema-driven tests among them, follow them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Json = dict[str, Any]

_ID = {"id": "$response.body#/id"}
_NAMED = {"ns": "$response.body#/namespace", "name": "$response.body#/name"}
_SOUP = {"ns": "$response.body#/soup/namespace", "name": "$response.body#/soup/name"}
_BLOB = {"digest": "$response.body#/digest"}
_JOB = ("get_job", "cancel_job")

FOLLOWED: Mapping[tuple[str, str], tuple[Mapping[str, str], tuple[str, ...]]] = {
    ("create_key", "201"): (
        _ID, ("change_key", "rotate_key", "get_key_limits", "change_key_limits", "revoke_key"),
    ),
    ("open_upload", "202"): (_ID, ("get_upload", "add_part", "finish_upload", "delete_upload")),
    ("add_part", "202"): (_ID, ("get_upload", "add_part", "finish_upload", "delete_upload")),
    ("put_blob", "201"): (_BLOB, ("head_blob", "get_blob", "put_blob")),
    ("finish_upload", "201"): (_BLOB, ("head_blob", "get_blob")),
    ("push_adapter", "201"): (
        _NAMED,
        (
            "get_adapter", "change_adapter", "retire_adapter", "restore_adapter", "purge_adapter", "get_lineage",
            "list_files", "get_file", "list_aliases", "put_alias", "delete_alias", "get_model",
            "hub_repository", "hub_refs", "hub_check",
        ),
    ),
    ("change_adapter", "200"): (_NAMED, ("get_adapter", "change_adapter", "retire_adapter")),
    ("retire_adapter", "200"): (_NAMED, ("get_adapter", "restore_adapter", "purge_adapter")),
    ("restore_adapter", "200"): (_NAMED, ("get_adapter", "retire_adapter")),
    ("fit_selector", "201"): (_ID, ("get_selector",)),
    ("fit_selector", "202"): (_ID, _JOB),
    ("select_adapters", "202"): (_ID, _JOB),
    ("cook_soup", "201"): (_SOUP, ("get_soup", "get_soup_lineage", "get_model", "retire_adapter")),
    ("cook_soup", "202"): (_ID, _JOB),
    ("start_training", "202"): (_ID, _JOB),
}  # fmt: skip
"""By call (its operation id) and status: how the parts of a path are found in the answer, and which calls take them."""


def document(schema: Json) -> Json:
    """The OpenAPI document with the links of every answer that has some."""
    for operations in schema["paths"].values():
        for operation in operations.values():
            for status, answer in operation["responses"].items():
                parts, calls = FOLLOWED.get((operation["operationId"], status), ({}, ()))
                if calls:
                    answer["links"] = {call: {"operationId": call, "parameters": dict(parts)} for call in calls}
    return schema
