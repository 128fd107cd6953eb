"""What routes take from the application: the server's parts, as a type in their signature (`parts: AppParts`)."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Request

from service.parts import Parts


async def parts_of(request: Request) -> Parts:
    """The parts of the runtime that `create_app` was given."""
    parts: Parts = request.app.state.runtime.parts
    return parts


AppParts = Annotated[Parts, Depends(parts_of)]
