"""Jobs as a key may see them: without names of namespaces that the key does not read.

A job belongs to one namespace and may work on others: the caller of a cook may read three, an administrator's pool
spans all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache

from registry.catalogue import Catalogue
from registry.catalogue.rows import AdapterRow, JobRow, Namespaces
from registry.cook.budget import past_gains
from registry.errors import Forbidden
from registry.names import COOKS
from registry.spec import Cooked
from service.access.keys import Principal
from service.http.schemas.adapters import adapter_body
from service.http.schemas.jobs import Job, job_body
from service.http.schemas.soups import HigherEffort, Soup
from service.jobs.kinds import KINDS
from service.services import Services

Gains = Callable[[str], Mapping[str, tuple[float, int]]]
"""Base model -> `past_gains` of the cooks that a key sees."""
HIDDEN = "Only keys that see every namespace this job works on see more."


def sees_all_of(row: JobRow, visible: Namespaces) -> bool:
    """Return True if `visible` covers every namespace the job works on."""
    if visible is None:
        return True
    kind = KINDS.get(row.kind)
    reach = None if kind is None else kind.reach(row)
    return reach is not None and set(reach) <= set(visible)


def check_reach(row: JobRow, visible: Namespaces) -> None:
    """Raise Forbidden if a job works on a namespace that is not `visible`: such a key must not change it."""
    if not sees_all_of(row, visible):
        raise Forbidden("This job works on namespaces that this key does not see.", param="id")


def requested_job_body(row: JobRow, principal: Principal) -> Job:
    """Return the body of a job that this key requested; the owner may be another key with an equal request."""
    body = job_body(row)
    return body if _knows_owner(row, principal) else body.model_copy(update={"owner": None})


def _knows_owner(row: JobRow, principal: Principal) -> bool:
    """Return True if this key may see the owner's name: it is the owner, or sees all namespaces of the owner."""
    if principal.namespaces is None or row.created_by == principal.key_id:
        return True
    return row.owner_namespaces is not None and set(row.owner_namespaces) <= set(principal.namespaces)


def visible_job_body(services: Services, row: JobRow, principal: Principal, gains: Gains | None = None) -> Job:
    """Return a job as a key may see it; the result of a cook has the shape of the answer of `POST /v1/soups`.

    Jobs of a list share the `gains`.
    """
    body = requested_job_body(row, principal)
    if not sees_all_of(row, principal.namespaces):
        error = None if row.error is None else {"code": row.error.get("code"), "message": HIDDEN}
        progress = body.progress.model_copy(update={"message": ""})
        hidden = {"result": None, "error": error, "progress": progress, "owner": None, "created_by": None}
        return body.model_copy(update=hidden)
    if row.kind not in COOKS or row.result is None:
        return body
    cooked = Cooked.model_validate(row.result)
    soup = soup_of(services, cooked, principal.namespaces, gains)
    return body.model_copy(update={"result": soup.model_dump(mode="json")})


def gains_by_base(services: Services, visible: Namespaces) -> Gains:
    """Return a function of a base model that reads the past gains on it once, for a key that sees `visible`."""
    return cache(lambda base_model: past_gains(services.registry.database, base_model, visible))


def soup_of(services: Services, cooked: Cooked, visible: Namespaces, gains: Gains | None = None) -> Soup:
    """Return the body of a cook's result, with the soup or adapter behind its model, for a key that sees `visible`.

    A job stays longer than its soup may: where that was purged since, the body is without it.
    """
    evidence = cooked.evidence
    with services.registry.database.read() as catalogue:
        row = _cooked_row(catalogue, cooked)
        parents = catalogue.soups.parents(cooked.recipe_digest, visible)
    fields = {name: getattr(cooked, name) for name in Soup.model_fields if name in Cooked.model_fields}
    # the base model of a purged soup is not known: no past cook gives its gains
    base_model = cooked.model.removeprefix("base/") if row is None else row.base_model
    return Soup(
        **{**fields, "beyond": _higher_efforts(cooked, base_model, gains or gains_by_base(services, visible))},
        soup=None if row is None else adapter_body(row),
        refs={digest: parent.ref for digest, _, parent in parents if parent is not None},
        selection=evidence.selection,
        sample=evidence.sample,
        verification=evidence.verification,
        search=evidence.search,
        selector=evidence.selector,
        fitted_at=evidence.fitted_at,
        not_yet_included=list(evidence.not_yet_included),
    )


def _cooked_row(catalogue: Catalogue, cooked: Cooked) -> AdapterRow | None:
    """The soup or adapter behind a result's model; None if there is none, or it was purged since."""
    row = None if cooked.soup_id is None else catalogue.adapters.get_or_none(cooked.soup_id)
    # an id alone does not name it: SQLite once gave ids of purged versions again
    is_cooked = row is not None and (row.ref, row.digest) == (cooked.model, cooked.digest)
    return row if is_cooked else None


def _higher_efforts(cooked: Cooked, base_model: str, gains: Gains) -> tuple[HigherEffort, ...]:
    """The prices of a cook's result, with the gains of past cooks."""
    efforts = []
    for price in cooked.beyond:
        gain, cooks = gains(base_model).get(price.effort, (None, 0))
        efforts.append(HigherEffort(**price.model_dump(), gain=gain, cooks=cooks))
    return tuple(efforts)
