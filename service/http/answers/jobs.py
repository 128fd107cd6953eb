"""A job as a key sees it, and whether it may change it: no name of a namespace that the key does not read.

A job lives in one namespace and may work on others: the caller of a cook may read three, an administrator's pool
spans all.
"""

from __future__ import annotations

from registry.catalogue.rows import JobRow, Namespaces
from registry.errors import Forbidden
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
        return body.model_copy(update={"result": None, "error": error, "progress": progress, "owner": None})
    if row.kind != "cook" or row.result is None:
        return job_body(row)
    cooked = Cooked.model_validate(row.result)
    return job_body(row, soup_of(parts, cooked).model_dump(mode="json"))
