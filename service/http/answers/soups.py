"""The answer of `POST /v1/soups`, which a finished cook job shows too."""

from __future__ import annotations

from registry.spec import Cooked
from service.http.schemas.adapters import Adapter, adapter_body
from service.http.schemas.soups import Soup
from service.parts import Parts


def soup_of(parts: Parts, cooked: Cooked) -> Soup:
    """The body of a cooked request, with the soup or adapter behind its model."""
    evidence = cooked.evidence
    return Soup(
        **{name: getattr(cooked, name) for name in Soup.model_fields if name in Cooked.model_fields},
        soup=_adapter(parts, cooked.soup_id),
        selection=evidence.selection,
        sample=evidence.sample,
        verification=evidence.verification,
        search=evidence.search,
        selector=evidence.selector,
        fitted_at=evidence.fitted_at,
        not_yet_included=list(evidence.not_yet_included),
    )


def _adapter(parts: Parts, adapter_id: int | None) -> Adapter | None:
    if adapter_id is None:
        return None
    with parts.registry.database.read() as catalogue:
        return adapter_body(catalogue.adapters.get(adapter_id))
