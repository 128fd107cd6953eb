"""What routes take from the application: its runtime, as a type in their signature (`runtime: State`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from fastapi import Depends, Request

if TYPE_CHECKING:
    from service.runtime import Runtime


async def runtime_of(request: Request) -> Any:
    """The runtime that `create_app` was given."""
    return request.app.state.runtime


if TYPE_CHECKING:
    State = Annotated[Runtime, Depends(runtime_of)]
else:  # the framework evaluates annotations; it need not import the runtime for one
    State = Annotated[Any, Depends(runtime_of)]
