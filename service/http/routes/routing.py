"""`POST /v1/route`: the model that `auto` chooses for a prompt, for a gateway in front of another engine."""

from __future__ import annotations

from fastapi import APIRouter

from service.http.app_services import AppServices
from service.http.models.auto_model import choose_for_prompt
from service.http.models.named_models import sole_base
from service.http.requests.bodies import CheckedRoute
from service.http.requests.body_limits import TEXTS, takes
from service.http.schemas.routing import Route, RouteRequest
from service.http.security.auth import ModelUser

router = APIRouter(tags=["inference"], route_class=CheckedRoute)


@router.post("/v1/route")
@takes(TEXTS)
def route(body: RouteRequest, services: AppServices, principal: ModelUser) -> Route:
    """Choose a model for a prompt, as `auto` does in a completion, without generating an answer.

    Not counted in usage. Raises 503 until a selector is fitted for the adapters that the key sees.
    """
    services.engine.check_admission(principal.key_id, local=True)  # what is refused costs nobody else's time
    base_id = sole_base(services, param="base_model") if body.base_model is None else body.base_model
    choice = choose_for_prompt(services, principal, body.texts, base_id)
    return Route(model=choice.single, mixture=choice.model.name, adapters=list(choice.adapters), novelty=choice.novelty)
