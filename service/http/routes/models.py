"""`GET /v1/models`: the models that requests can name in `model`, in OpenAI's shape."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends

from registry.catalogue.rows import ListedRow
from registry.names import BaseRef, parse_ref
from registry.spec import BaseShape
from service.access.keys import Principal
from service.base_models import ServedBaseModel
from service.http.app_services import AppServices
from service.http.models.named_models import base_named
from service.http.requests.bodies import CheckedRoute
from service.http.schemas.models import ArchitectureCard, EncoderCard, ModelCard, ModelList
from service.http.security.auth import needs
from service.services import Services

router = APIRouter(prefix="/v1/models", tags=["inference"], route_class=CheckedRoute)
Either = Annotated[Principal, Depends(needs("infer", "read"))]

MAX_LISTED = 10_000
"""Most adapters in the list, since OpenAI's has no pages; beyond it `has_more` is set. `/v1/adapters` has all."""
PAGE = 200


@router.get("")
def list_models(services: AppServices, principal: Either) -> ModelList:
    """Base models, then adapters and soups that answer with text, newest first, each name once.

    `/v1/adapters` also lists adapters with a head, banks of experts, and adapters of encoders.
    """
    cards = [_base_card(services, base) for base in services.bases.values()]
    names: set[str] = set()
    cursor: str | None = None
    with services.registry.database.read() as catalogue:
        while len(names) < MAX_LISTED:
            page = catalogue.adapters.list(principal.namespaces, limit=PAGE, cursor=cursor)
            for row in page.rows:
                name = f"{row.namespace}/{row.name}"
                if name not in names:
                    names.add(name)
                    card = _adapter_card(services, row, name)
                    cards += [card] if card.speaks else []
            cursor = page.next_cursor
            if cursor is None:
                break
    return ModelList(data=cards, has_more=cursor is not None)


@router.get("/{id}")
def get_base_or_digest(id: str, services: AppServices, principal: Either) -> ModelCard:
    """A base model by its id, or an adapter by its digest."""
    return _card(services, principal, id if id.startswith("sha256:") else f"base/{id}")


@router.get("/{ns}/{name}")
def get_model(ns: str, name: str, services: AppServices, principal: Either) -> ModelCard:
    """An adapter or soup by `ns/name[@version|@alias]`, or a base model by `base/<id>`."""
    return _card(services, principal, f"{ns}/{name}")


def _card(services: Services, principal: Principal, text: str) -> ModelCard:
    ref = parse_ref(text)
    if isinstance(ref, BaseRef):
        return _base_card(services, base_named(services, ref.id))
    with services.registry.database.read() as catalogue:
        return _adapter_card(services, catalogue.adapters.resolve(principal.namespaces, ref), text)


def _base_card(services: Services, base: ServedBaseModel) -> ModelCard:
    shape = base.shape
    return ModelCard(
        id=base.entry.id,
        created=0,
        owned_by="base",
        kind="base",
        speaks=shape.kind == "causal",
        base_model=base.entry.id,
        digest=None,
        max_model_len=shape.context,
        packed=services.engine.is_packed(base.entry.id),
        fingerprint=shape.fingerprint,
        architecture=_architecture(shape),
        encoders=[
            EncoderCard(name=encoder.name, digest=encoder.digest, unit=encoder.unit, dimensions=encoder.dimensions)
            for encoder in base.encoders().values()
        ],
    )


def _architecture(shape: BaseShape) -> ArchitectureCard:
    heads, size = (None, None) if shape.kv is None else shape.kv
    return ArchitectureCard(
        model_type=shape.model_type,
        layers=shape.num_layers,
        hidden_size=shape.hidden_size,
        key_value_heads=heads,
        head_size=size,
    )


def _adapter_card(services: Services, row: ListedRow, name: str) -> ModelCard:
    """Return the card of an adapter; if its base model is no longer served, as if that were a causal one."""
    on_encoder = row.base_model in services.bases and services.bases[row.base_model].entry.kind == "encoder"
    return ModelCard(
        id=name,
        created=int(row.created_at.timestamp()),
        owned_by=row.namespace,
        owner=row.owner,
        kind=row.kind,
        speaks=not on_encoder and row.config.is_language_model,
        base_model=row.base_model,
        digest=row.digest,
        tuned=row.tuned,
        learnt_from=list(row.learnt_from),
    )
