"""The heat map of evaluations: how well each adapter predicts the sample of each domain."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request, Response
from pydantic import BeforeValidator, Field

from registry.catalogue.evaluations import EvaluationRow
from registry.errors import InvalidParameter, SoupError
from registry.evaluate.matrix import pairs_of
from registry.names import check_part
from registry.select.requested import pool_of
from registry.spec import BaseId, PoolRequest
from service.access.keys import Principal
from service.http.app_services import AppServices
from service.http.pages.downloads import Column, Table, csv_response
from service.http.pages.forms import SMALL, Form, Text, takes_form, text_or_none
from service.http.pages.page import PageRoute, redirect_to, render_page
from service.http.routes.evaluations import begin_evaluation
from service.http.schemas.evaluations import Evaluation, EvaluationRequest, evaluation_body
from service.http.schemas.wire import Wire
from service.http.security.auth import Reader, Writer
from service.services import Services

BaseText = Annotated[BaseId | None, Query(), BeforeValidator(text_or_none)]
pages = APIRouter(route_class=PageRoute, include_in_schema=False)
MAX_EVALUATIONS = 10_000
"""The newest evaluations that the page reads; the CSV file has all."""
LARGEST_POOL = 1000
"""Names of the largest pool whose pairs the page counts; names of one domain count once."""
MAX_DRAWN = 40
"""Adapters, and domains, of the heat map on the page; the CSV file has all."""
LEVELS = 4
"""Colours on either side of zero."""
SIGNIFICANT = 2.0
"""Standard errors from which on a difference is coloured."""


class SampledDomain(Wire):
    """A domain: the version whose sample represents it, and the number of names with that sample."""

    ref: str
    domain: str
    names: int


class Matrix(Wire):
    """Evaluations of adapters on the samples of domains."""

    object: Literal["matrix"] = "matrix"
    base_model: str | None
    """Null where the server has none."""
    base_models: list[str]
    namespace: str | None
    """The namespace of adapters and samples; null for all that the key sees."""
    adapters: list[str]
    """Refs in the order of their own domains; those without an own sample come last."""
    domains: list[SampledDomain]
    evaluations: list[Evaluation]
    cut: bool
    """True if there are more evaluations than these, the newest."""
    names: dict[str, int]
    """The number of names with the weights of an adapter, if there are several."""
    own_samples: dict[str, str] = Field(serialization_alias="own")
    """The digest of the sample of each adapter that has one."""
    missing: int | None
    """Pairs of the pool that are not evaluated yet; null if there is no pool, or it is too large to count."""
    pairs: int | None


@pages.get("/matrix.json")
def matrix(services: AppServices, principal: Reader, base_model: BaseText = None, namespace: Text = None) -> Matrix:
    """The content of the page."""
    return _load_matrix(services, principal, base_model, namespace)


@pages.get("/matrix/{table}.csv")
def matrix_csv(
    table: str, services: AppServices, principal: Reader, base_model: BaseText = None, namespace: Text = None
) -> Response:
    """The table of all evaluations as a CSV file."""
    matrix = _load_matrix(services, principal, base_model, namespace, complete=True)
    return csv_response([_evaluations_table(matrix)], table)


@pages.get("/matrix")
def matrix_page(
    request: Request, services: AppServices, principal: Reader, base_model: BaseText = None, namespace: Text = None
) -> Response:
    """The page."""
    return _page(request, matrix(services, principal, base_model, namespace))


@pages.post("/matrix")
@takes_form(SMALL)
def evaluate(request: Request, form: Form, services: AppServices, principal: Writer) -> Response:
    """Start to evaluate the missing pairs and redirect to the job."""
    base_model, namespace = text_or_none(form.get("base_model")), text_or_none(form.get("namespace"))
    try:
        evaluation_request = EvaluationRequest(pool=_pool_request(base_model, namespace))
        job = begin_evaluation(services, principal, evaluation_request)
    except SoupError as error:
        return _page(request, _load_matrix(services, principal, base_model, namespace), error=error)
    services.jobs.wake()
    return redirect_to(f"/jobs/{job.id}")


def _page(request: Request, matrix: Matrix, *, error: SoupError | None = None) -> Response:
    filters = {
        "base_model": matrix.base_model if len(matrix.base_models) > 1 else None,
        "namespace": matrix.namespace,
    }
    return render_page(
        request,
        "matrix.html",
        error=error,
        matrix=matrix,
        cells=heat_map_cells(matrix),
        max_drawn=MAX_DRAWN,
        filters=filters,
    )


def _pool_request(base_model: str | None, namespace: str | None) -> PoolRequest:
    if namespace is not None:
        check_part(namespace, "namespace")
    return PoolRequest(base_model=base_model, namespaces=None if namespace is None else (namespace,))


# --- the evaluations ------------------------------------------------------------------------------------


def _load_matrix(
    services: Services, principal: Principal, base_model: str | None, namespace: str | None, *, complete: bool = False
) -> Matrix:
    """The newest evaluations, or all if `complete`, on a base model, the first one if none is named.

    Raises InvalidParameter for a base model that the server does not have.
    """
    names = sorted(services.bases)
    if base_model is not None and base_model not in names:
        raise InvalidParameter(f"{base_model[:64]!r} is no base model of this server.", param="base_model")
    base = base_model or (names[0] if names else None)
    rows: list[EvaluationRow] = []
    cut = False
    pairs = missing = None
    if base is not None:
        rows, cut = _evaluation_rows(services, principal, base, namespace, complete=complete)
        pairs, missing = _count_pairs(services, principal, base, namespace)
    evaluations = [evaluation_body(row) for row in rows]
    domains = _sampled_domains(evaluations)
    places = {domain.ref: place for place, domain in enumerate(domains)}
    adapters = {evaluation.adapter for evaluation in evaluations}
    return Matrix(
        base_model=base,
        base_models=names,
        namespace=namespace,
        adapters=sorted(adapters, key=lambda ref: (places.get(ref, len(places)), ref)),
        domains=domains,
        evaluations=evaluations,
        cut=cut,
        names={item.adapter: item.adapter_names for item in evaluations if item.adapter_names > 1},
        own_samples={
            f"{row.adapter}@{row.adapter_version}": row.own_sample for row in rows if row.own_sample is not None
        },
        missing=missing,
        pairs=pairs,
    )


def _evaluation_rows(
    services: Services, principal: Principal, base: str, namespace: str | None, *, complete: bool
) -> tuple[list[EvaluationRow], bool]:
    """The newest evaluations, or all if `complete`, and True if there are more."""
    fingerprint = services.bases[base].shape.fingerprint
    rows: list[EvaluationRow] = []
    cursor: str | None = None
    with services.registry.database.read() as catalogue:
        while True:
            page = catalogue.evaluations.list(
                principal.namespaces,
                base_fingerprint=fingerprint,
                namespace=namespace,
                limit=MAX_EVALUATIONS,
                cursor=cursor,
            )
            rows += page.rows
            cursor = page.next_cursor
            if cursor is None or not complete:
                return rows, cursor is not None


def _sampled_domains(evaluations: Sequence[Evaluation]) -> list[SampledDomain]:
    """The domains of the samples, each sample once, by domain and ref."""
    domains = {
        evaluation.sample_of: SampledDomain(
            ref=evaluation.sample_of, domain=evaluation.domain, names=evaluation.sample_names
        )
        for evaluation in evaluations
    }
    return sorted(domains.values(), key=lambda domain: (domain.domain, domain.ref))


def _count_pairs(
    services: Services, principal: Principal, base: str, namespace: str | None
) -> tuple[int | None, int | None]:
    """The pairs of the pool, and those that are not evaluated.

    Both are None if there is no pool or it is too large to be read for a page.
    """
    try:
        _, pool = pool_of(services.registry, principal.caller, _pool_request(base, namespace))
        with services.registry.database.read() as catalogue:
            if catalogue.adapters.pool_is_larger(pool, LARGEST_POOL):
                return None, None
        pairs = pairs_of(services.registry, pool, passages=EvaluationRequest().passages)
    except SoupError:
        return None, None
    return pairs.count, len(pairs.missing)


def _evaluations_table(matrix: Matrix) -> Table:
    columns = (
        Column("Adapter", "model"),
        Column("Domain"),
        Column("Sample of", "model"),
        Column("Passages", "number"),
        Column("Tokens", "number"),
        Column("Mean NLL", "number"),
        Column("Mean NLL of the base", "number"),
        Column("Difference", "difference"),
        Column("Standard error", "number"),
    )
    evaluations = sorted(matrix.evaluations, key=lambda item: (item.domain, item.sample_of, item.difference))
    rows = tuple(
        (
            evaluation.adapter,
            evaluation.domain,
            evaluation.sample_of,
            evaluation.passages,
            evaluation.tokens,
            evaluation.mean_nll,
            evaluation.base_mean_nll,
            evaluation.difference,
            evaluation.standard_error,
        )
        for evaluation in evaluations
    )
    return Table("evaluations", "Adapters on samples", columns, rows)


# --- the heat map ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class HeatMapCell:
    """An evaluation and its colour level, from -4 (much better than the base) to 4 (much worse)."""

    evaluation: Evaluation
    level: int
    is_own_sample: bool
    """True if the adapter is evaluated on its own sample."""

    @property
    def colour(self) -> str:
        """The suffix of its CSS class."""
        return "none" if not self.level else f"{'good' if self.level < 0 else 'bad'}-{abs(self.level)}"


def heat_map_cells(matrix: Matrix) -> list[list[HeatMapCell | None]]:
    """A row for each adapter with a cell for each domain, None if it is not evaluated; at most MAX_DRAWN of both."""
    largest = max((abs(item.difference) for item in matrix.evaluations), default=0.0)
    cells = {
        (item.adapter, item.sample_of): HeatMapCell(
            evaluation=item,
            level=colour_level(item.difference, item.standard_error, largest),
            is_own_sample=matrix.own_samples.get(item.adapter) == item.sample,
        )
        for item in matrix.evaluations
    }
    domains = matrix.domains[:MAX_DRAWN]
    return [[cells.get((adapter, domain.ref)) for domain in domains] for adapter in matrix.adapters[:MAX_DRAWN]]


def colour_level(difference: float, standard_error: float, largest: float) -> int:
    """The colour of a difference by its share of the largest one; 0 if it is not significant."""
    if largest == 0 or abs(difference) <= SIGNIFICANT * standard_error:
        return 0
    return math.ceil(LEVELS * abs(difference) / largest) * (-1 if difference < 0 else 1)
