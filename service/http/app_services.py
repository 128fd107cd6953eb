"""The server's services as a dependency of routes: a parameter `services: AppServices`."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Request

from service.services import Services


async def services_of(request: Request) -> Services:
    """Return the services of the runtime that `create_app` was given."""
    services: Services = request.app.state.runtime.services
    return services


AppServices = Annotated[Services, Depends(services_of)]
