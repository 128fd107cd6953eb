"""The page to cook a soup for a sample of text; the result is on the page of the job."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

from fastapi import APIRouter, Depends, Request, Response
from pydantic import ValidationError

from registry.errors import InvalidSample, SoupError
from registry.samples.sample import clean_sample
from registry.samples.texts import split_texts
from registry.spec import Effort, SampleSource
from service.http import problems
from service.http.app_services import AppServices
from service.http.pages.forms import SAMPLE, Form, takes_form
from service.http.pages.page import PageRoute, redirect_to, render_page
from service.http.schemas.soups import SoupRequest
from service.http.schemas.wire import Wire
from service.http.security.auth import Writer, needs
from service.jobs.cook import check_pool
from service.jobs.cook_requests import begin_cook
from service.services import Services

pages = APIRouter(route_class=PageRoute, include_in_schema=False)
EFFORT_HINTS: dict[Effort, str] = {
    "instant": "Compares your text with the samples of the adapters. Seconds.",
    "quick": "Weighs the best candidates by their gradients on most of your text, and checks on the rest. Some ten "
    "passes over your text.",
    "thorough": "Weighs more of them for longer, and tries other mixing methods. Some thirty passes.",
    "tune": "Trains the soup on your text, and checks on held-out passages. Some fifteen passes, for fewer than 20 "
    "passages some thirty. The soup is always marked as trained on your text.",
}
"""Descriptions of the efforts with their approximate duration, for the form."""
BINARY = re.compile("[\0-\x08\x0e-\x1f\ufffd]")
"""Characters that a browser produces when it reads a binary file as text."""


class CookForm(Wire):
    """The choices of the form."""

    object: Literal["cook_form"] = "cook_form"
    base_models: list[str]
    efforts: dict[Effort, str]
    default_effort: Effort
    fewest_passages: int
    good_passages: int


@pages.get("/cook.json", dependencies=[Depends(needs("write"))])
def cook_form(services: AppServices) -> CookForm:
    """The content of the page."""
    sample = services.registry.limits.sample
    return CookForm(
        base_models=sorted(services.bases),
        efforts=EFFORT_HINTS,
        default_effort=services.settings.default_effort,
        fewest_passages=min(sample.novel, sample.minimum),
        good_passages=sample.good,
    )


@pages.get("/cook", dependencies=[Depends(needs("write"))])
def cook_page(request: Request, services: AppServices) -> Response:
    """The page."""
    return _page(request, services, {})


@pages.post("/cook")
@takes_form(SAMPLE)
def cook(request: Request, form: Form, services: AppServices, principal: Writer) -> Response:
    """Start a cook and redirect to its job; show the form again with the error if it cannot start."""
    try:
        soup_request = _parse_request(form, services)
        check_pool(services.registry, principal.caller, soup_request)
        job = begin_cook(services, principal, soup_request)
    except SoupError as error:
        return _page(request, services, form, error)
    services.jobs.wake()
    return redirect_to(f"/jobs/{job.id}")


def _page(request: Request, services: Services, form: Mapping[str, str], error: SoupError | None = None) -> Response:
    """The page with the fields of `form` filled in."""
    return render_page(request, "cook.html", error=error, choices=cook_form(services), form=form)


def _parse_request(form: Mapping[str, str], services: Services) -> SoupRequest:
    """The request that a form describes; raises InvalidSample, or InvalidParameter for any other field."""
    fields = {name: value.strip() for name, value in form.items()}
    if not fields.get("sample"):
        raise InvalidSample("Paste some text, or drop a file of it.", param="sample")
    if BINARY.search(fields["sample"]):
        raise InvalidSample(
            "The sample holds control characters, so it may be a binary or compressed file: unpack it first.",
            param="sample",
        )
    texts = split_texts(fields["sample"], label="The sample")
    clean_sample(texts, services.registry.limits.sample, novel=True)  # raises here rather than in the job
    effort = fields.get("effort") or None
    if effort == "tune" == services.settings.default_effort:
        effort = None  # a default: `quick` replaces it where tuning is refused
    try:
        return SoupRequest.model_validate(
            {
                "sample": SampleSource(texts=tuple(texts)),
                "effort": effort,
                "name": fields.get("name") or None,
                "pool": {"base_model": fields.get("base_model") or None},
                "control": "control" in fields and effort in {"quick", "thorough"},
            }
        )
    except ValidationError as error:
        raise problems.from_validation(error.errors()) from None
