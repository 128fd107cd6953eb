"""How much of a job, and of a soup's evidence, a key may see: no name of a namespace it does not read.

A job and a soup live in one namespace, and what they were made over may be wider: the caller of a cook may read
three namespaces, an administrator's pool spans all. Called by the routes of jobs, soups, selectors and adapters.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from registry.catalogue.rows import JobRow, Namespaces
from registry.errors import Forbidden
from registry.names import NameRef, parse_ref
from registry.spec import Cooked
from service.http.answers.soups import soup_of
from service.http.schemas.jobs import Job, job_body
from service.jobs.kinds import KINDS
from service.parts import Parts

HIDDEN = "Only keys that see every namespace this job works on see more."


def sees_all_of(row: JobRow, visible: Namespaces) -> bool:
    """Whether `visible` covers every namespace the job works on."""
    if visible is None:
        return True
    kind = KINDS.get(row.kind)
    reach = None if kind is None else kind.reach(row)
    return reach is not None and set(reach) <= set(visible)


def check_reach(row: JobRow, visible: Namespaces) -> None:
    """Raises Forbidden where a job works on namespaces beyond `visible`: it is not this key's to change."""
    if not sees_all_of(row, visible):
        raise Forbidden("This job works on namespaces that this key does not see.", param="id")


def job_shown(parts: Parts, row: JobRow, visible: Namespaces) -> Job:
    """A job as a key sees it; what a cook job gave has the shape `POST /v1/soups` answers with."""
    if not sees_all_of(row, visible):
        body = job_body(row)
        error = None if row.error is None else {"code": row.error.get("code"), "message": HIDDEN}
        progress = body.progress.model_copy(update={"message": ""})
        return body.model_copy(update={"result": None, "error": error, "progress": progress})
    if row.kind != "cook" or row.result is None:
        return job_body(row)
    cooked = Cooked.model_validate(row.result)
    return job_body(row, soup_of(parts, cooked).model_dump(mode="json"))


def evidence_shown(evidence: Mapping[str, Any], visible: Namespaces) -> dict[str, Any]:
    """Evidence as a key sees it: without the selection where that names adapters of other namespaces."""
    selection = evidence.get("selection") or {}
    refs = [one["ref"] for part in ("selected", "left_out") for one in selection.get(part, ())]
    refs += evidence.get("not_yet_included", ())
    if visible is None or all(_namespace(ref) in visible for ref in refs):
        return dict(evidence)
    return {**evidence, "selection": None, "not_yet_included": []}


def _namespace(ref: str) -> str | None:
    parsed = parse_ref(ref)
    return parsed.namespace if isinstance(parsed, NameRef) else None
