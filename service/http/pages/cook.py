"""The page to cook: a sample of text, how much may be spent on it, and a name; what comes of it is a job's page."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

from fastapi import APIRouter, Request, Response
from pydantic import ValidationError

from registry.errors import InvalidSample, SoupError
from registry.samples.sample import prepare
from registry.samples.texts import split_texts
from registry.spec import Effort, SampleSource
from service.access.keys import Principal
from service.http import problems
from service.http.app_parts import AppServices
from service.http.pages import addresses
from service.http.pages.forms import SAMPLE, Form, takes_form
from service.http.pages.page import PageRoute, gone_to, shown
from service.http.routes.soups import begin_cook
from service.http.schemas.soups import SoupRequest
from service.http.schemas.wire import Wire
from service.http.security.auth import Writer
from service.jobs.cook import check_pool
from service.parts import Services

pages = APIRouter(route_class=PageRoute, include_in_schema=False)
WHAT: dict[Effort, str] = {
    "instant": "Compares your text with the samples of the adapters. Seconds.",
    "quick": "Weighs the best candidates by their gradients on most of your text, and checks on the rest. Some ten "
    "passes over your text.",
    "thorough": "Weighs more of them for longer, and tries other ways to mix. Some thirty passes.",
    "tune": "Trains the soup on your text, and checks on what was held out. It has then learnt from your text, and is "
    "marked so everywhere.",
}
"""What an effort does, and about how long it takes."""


BINARY = re.compile("[\0-\x08\x0e-\x1f\ufffd]")
"""What a browser makes of a file that is no text."""


class CookForm(Wire):
    """What can be asked for."""

    object: Literal["cook_form"] = "cook_form"
    base_models: list[str]
    efforts: dict[Effort, str]
    default_effort: Effort
    fewest_passages: int
    good_passages: int


@pages.get(addresses.COOK + addresses.TWIN)
def cook_form(services: AppServices, principal: Writer) -> CookForm:  # noqa: ARG001  # whoever may cook
    """What the page shows."""
    sample = services.registry.limits.sample
    return CookForm(
        base_models=sorted(services.bases),
        efforts=WHAT,
        default_effort=services.settings.default_effort,
        fewest_passages=min(sample.novel, sample.minimum),
        good_passages=sample.good,
    )


@pages.get(addresses.COOK)
def cook_page(request: Request, services: AppServices, principal: Writer) -> Response:
    """The form."""
    return _form(request, services, principal, {})


@pages.post(addresses.COOK)
@takes_form(SAMPLE)
def cook(request: Request, form: Form, services: AppServices, principal: Writer) -> Response:
    """Begin to cook, and show how it goes on; where that cannot be, the form again, with what is wrong."""
    try:
        asked, request_id = _asked(form, services), request.state.request_id
        check_pool(services.registry, principal.caller(request_id), asked)
        job = begin_cook(services, principal, asked, request_id)
    except SoupError as error:
        return _form(request, services, principal, form, error)
    services.jobs.wake()
    return gone_to(f"/jobs/{job.id}")


def _form(
    request: Request, services: Services, principal: Principal, given: Mapping[str, str], error: SoupError | None = None
) -> Response:
    """The form as it was given, and what is wrong with it."""
    return shown(request, "cook.html", error=error, form=cook_form(services, principal), given=given)


def _asked(form: Mapping[str, str], services: Services) -> SoupRequest:
    """The request that a form makes; raises InvalidSample, or InvalidParameter for any other field."""
    given = {name: value.strip() for name, value in form.items()}
    if not given.get("sample"):
        raise InvalidSample("Paste some text, or drop a file of it.", param="sample")
    if BINARY.search(given["sample"]):
        raise InvalidSample(
            "The sample holds control characters, as a packed or binary file does: unpack it first.", param="sample"
        )
    texts = split_texts(given["sample"], what="The sample")
    prepare(texts, services.registry.limits.sample, novel=True)  # to be told at once, and not by a job
    effort = given.get("effort") or None
    try:
        return SoupRequest.model_validate(
            {
                "sample": SampleSource(texts=tuple(texts)),
                "effort": effort,
                "name": given.get("name") or None,
                "pool": {"base_model": given.get("base_model") or None},
                "control": "control" in given and effort in {"quick", "thorough"},
            }
        )
    except ValidationError as error:
        raise problems.from_validation(error.errors()) from None
