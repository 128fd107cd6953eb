"""The heat map: how well every adapter predicts the sample of every domain, as far as that was evaluated."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from fastapi import APIRouter, Request, Response

from registry.catalogue.evaluations import EvaluationRow
from registry.errors import InvalidParameter, SoupError
from registry.evaluate.matrix import pairs_of
from registry.names import check_part
from registry.select.select import pool_of
from registry.spec import PoolRequest
from service.access.keys import Principal
from service.http.app_parts import AppServices
from service.http.pages import addresses
from service.http.pages.fields import Text, given
from service.http.pages.forms import FEW, Form, takes_form
from service.http.pages.page import PageRoute, gone_to, shown
from service.http.pages.tables import Cell, Column, Table, csv_of
from service.http.routes.evaluations import begin_evaluation
from service.http.schemas.evaluations import Evaluation, EvaluationRequest, evaluation_body
from service.http.schemas.wire import Wire
from service.http.security.auth import Reader, Writer
from service.parts import Services

pages = APIRouter(route_class=PageRoute, include_in_schema=False)
MOST = 10_000
"""Evaluations that the page looks at, the newest; the CSV has all."""
LARGEST_POOL = 1000
"""Names of a pool whose pairs the page counts. Those of one domain count once, so that a pool of 100 may have more."""
DRAWN = 40
"""Adapters, and domains, of the heat map on the page; the CSV has all."""
LEVELS = 4
"""Colours to either side of none."""
SURE = 2.0
"""Standard errors within which a difference has no colour: it is not told apart from none."""


class Sampled(Wire):
    """A domain: the version whose sample stands for it, and how many names have that sample."""

    ref: str
    domain: str
    names: int


class Matrix(Wire):
    """What is known of how well adapters predict samples."""

    object: Literal["matrix"] = "matrix"
    base_model: str | None
    """Null where the server has none."""
    base_models: list[str]
    namespace: str | None
    """Of which adapters and samples are; null for all that the key sees."""
    adapters: list[str]
    """By ref, in the order of the domains that they have the sample of, where they have one."""
    domains: list[Sampled]
    evaluations: list[Evaluation]
    cut: bool
    """Whether there are more evaluations than these, the newest."""
    names: dict[str, int]
    """How many names have the weights of an adapter; those that no other name has are left out."""
    own: dict[str, str]
    """The digest of the sample of each adapter that has one."""
    missing: int | None
    """Pairs of the pool that are not evaluated yet; null where there is no pool, or one too large to look at."""
    pairs: int | None


@pages.get(addresses.MATRIX + addresses.TWIN)
def matrix(services: AppServices, principal: Reader, base_model: Text = None, namespace: Text = None) -> Matrix:
    """What the page shows."""
    return _matrix(services, principal, given(base_model), given(namespace))


@pages.get(addresses.MATRIX_CSV)
def matrix_csv(
    table: str, services: AppServices, principal: Reader, base_model: Text = None, namespace: Text = None
) -> Response:
    """Its table: a row for each pair."""
    return csv_of([_table(_matrix(services, principal, given(base_model), given(namespace), whole=True))], table)


@pages.get(addresses.MATRIX)
def matrix_page(
    request: Request, services: AppServices, principal: Reader, base_model: Text = None, namespace: Text = None
) -> Response:
    """The page."""
    return _page(request, _matrix(services, principal, given(base_model), given(namespace)))


@pages.post(addresses.MATRIX)
@takes_form(FEW)
def evaluate(request: Request, form: Form, services: AppServices, principal: Writer) -> Response:
    """Have what is missing evaluated, and show how that goes on."""
    base_model, namespace = given(form.get("base_model")), given(form.get("namespace"))
    try:
        body = EvaluationRequest(pool=_pool(base_model, namespace))
        job = begin_evaluation(services, principal, body, request.state.request_id)
    except SoupError as error:
        return _page(request, _matrix(services, principal, base_model, namespace), error=error)
    services.jobs.wake()
    return gone_to(f"/jobs/{job.id}")


def _pool(base_model: str | None, namespace: str | None) -> PoolRequest:
    if namespace is not None:
        check_part(namespace, "namespace")
    return PoolRequest(base_model=base_model, namespaces=None if namespace is None else (namespace,))


def _matrix(
    services: Services, principal: Principal, base_model: str | None, namespace: str | None, *, whole: bool = False
) -> Matrix:
    """What is known, of the first base model where none is named; raises InvalidParameter for one that is not here."""
    names = sorted(services.bases)
    if base_model is not None and base_model not in names:
        raise InvalidParameter(f"{base_model[:64]!r} is no base model of this server.", param="base_model")
    base = base_model or (names[0] if names else None)
    rows: list[EvaluationRow] = []
    cursor: str | None = None
    pairs = missing = None
    if base is not None:
        fingerprint = services.bases[base].shape.fingerprint
        with services.registry.database.read() as catalogue:
            while not rows or (whole and cursor is not None):
                page = catalogue.evaluations.list(
                    principal.namespaces, base_fingerprint=fingerprint, namespace=namespace, limit=MOST, cursor=cursor
                )
                rows += page.rows
                cursor = page.next_cursor
                if cursor is None:
                    break
        pairs, missing = _left(services, principal, base, namespace)
    found = [evaluation_body(row) for row in rows]
    own = {f"{row.adapter}@{row.adapter_version}": row.own_sample for row in rows if row.own_sample is not None}
    domains = {one.sample_of: Sampled(ref=one.sample_of, domain=one.domain, names=one.sample_names) for one in found}
    listed = sorted(domains.values(), key=lambda one: (one.domain, one.ref))
    shared = {one.adapter: one.adapter_names for one in found if one.adapter_names > 1}
    places = {one.ref: number for number, one in enumerate(listed)}
    adapters = sorted({one.adapter for one in found}, key=lambda ref: (places.get(ref, len(places)), ref))
    return Matrix(
        base_model=base,
        base_models=names,
        namespace=namespace,
        adapters=adapters,
        domains=listed,
        evaluations=found,
        cut=cursor is not None,
        names=shared,
        own=own,
        missing=missing,
        pairs=pairs,
    )


def _left(services: Services, principal: Principal, base: str, namespace: str | None) -> tuple[int | None, int | None]:
    """How many pairs the pool has, and how many of them are not evaluated; None twice where it is none.

    So it is of a pool that is too large to be read for a page; whoever asks for it to be evaluated is told.
    """
    try:
        _, pool = pool_of(services.registry, principal.caller(""), _pool(base, namespace))
        with services.registry.database.read() as catalogue:
            if catalogue.adapters.pool_is_larger(pool, LARGEST_POOL):
                return None, None
        found = pairs_of(services.registry, pool, passages=EvaluationRequest().passages)
    except SoupError:
        return None, None
    return found.count, len(found.missing)


# --- how it is drawn ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Square:
    """A pair where it is drawn; `level` is from -4 (much better than the base) to 4 (much worse)."""

    one: Evaluation
    level: int
    own: bool
    """Whether the sample is the adapter's own."""

    @property
    def colour(self) -> str:
        """The class that colours it."""
        return "none" if not self.level else f"{'good' if self.level < 0 else 'bad'}-{abs(self.level)}"


def squares(found: Matrix) -> list[list[Square | None]]:
    """A row for each adapter that is drawn, in it a square for each domain; None where that was not evaluated."""
    known = {(one.adapter, one.sample_of): one for one in found.evaluations}
    largest = max((abs(one.difference) for one in found.evaluations), default=0.0)
    return [
        [
            None
            if (one := known.get((adapter, of.ref))) is None
            else Square(one, level(one.difference, one.standard_error, largest), found.own.get(adapter) == one.sample)
            for of in found.domains[:DRAWN]
        ]
        for adapter in found.adapters[:DRAWN]
    ]


def level(difference: float, standard_error: float, largest: float) -> int:
    """The colour of a difference, by its share of the largest; 0 where it is not told apart from none."""
    if largest == 0 or abs(difference) <= SURE * standard_error:
        return 0
    return math.ceil(LEVELS * abs(difference) / largest) * (-1 if difference < 0 else 1)


def _table(found: Matrix) -> Table:
    columns = (
        Column("Adapter", "model"),
        Column("Domain"),
        Column("Sample of", "model"),
        Column("Passages", "number"),
        Column("Tokens", "number"),
        Column("Mean NLL", "number"),
        Column("Of the base", "number"),
        Column("Difference", "difference"),
        Column("Standard error", "number"),
    )
    rows: Sequence[tuple[Cell, ...]] = [
        (
            one.adapter,
            one.domain,
            one.sample_of,
            one.passages,
            one.tokens,
            one.mean_nll,
            one.base_mean_nll,
            one.difference,
            one.standard_error,
        )
        for one in sorted(found.evaluations, key=lambda one: (one.domain, one.sample_of, one.difference))
    ]
    return Table("evaluations", "Adapters on samples", columns, tuple(rows))


def _page(request: Request, found: Matrix, *, error: SoupError | None = None) -> Response:
    asked = {"base_model": found.base_model if len(found.base_models) > 1 else None, "namespace": found.namespace}
    return shown(request, "matrix.html", error=error, found=found, squares=squares(found), drawn=DRAWN, asked=asked)
