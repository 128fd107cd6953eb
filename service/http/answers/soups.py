"""The answer of `POST /v1/soups`, which a finished cook job shows too."""

from __future__ import annotations

from registry.spec import Cooked
from service.http.schemas.soups import Soup, soup_body
from service.parts import Parts


def soup_of(parts: Parts, cooked: Cooked) -> Soup:
    """The body of a cooked request, with the adapter behind its model."""
    if cooked.soup_id is None:
        return soup_body(cooked, None)
    with parts.registry.database.read() as catalogue:
        return soup_body(cooked, catalogue.adapters.get(cooked.soup_id))
