"""Arguments of the typed clients: models by name or as values, texts, requests that are checked before they leave."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from adaptersoup.values import Adapter, Listed, Soup
from registry.errors import InvalidParameter
from registry.spec import CookRequest, SampleSource
from service.http.schemas.adapters import ListedAdapter
from service.http.schemas.jobs import Job

T = TypeVar("T", bound=BaseModel)
Model = str | Listed | Adapter | Soup
"""What answers: the name of an adapter, a soup or a base model (`base/...`), or a value of one."""


def name_of(model: Model) -> str:
    """The name that a model is asked by."""
    if isinstance(model, Soup):
        return model.model
    return model.ref if isinstance(model, ListedAdapter) else model


def checked(texts: Sequence[str]) -> list[str]:
    """Raises InvalidParameter for one text, which is a sequence of texts to Python, and for what is no text."""
    if isinstance(texts, str) or not all(isinstance(text, str) for text in texts):
        raise InvalidParameter("Give a list of texts: strings, one for each passage.", param="texts")
    return list(texts)


def request_of(kind: type[T], **fields: Any) -> T:
    """A request of these fields, those that are None left out; raises InvalidParameter with what is wrong."""
    try:
        return kind.model_validate({name: value for name, value in fields.items() if value is not None})
    except ValidationError as error:
        problems = [f"{'.'.join(map(str, one['loc'])) or 'the request'}: {one['msg']}" for one in error.errors()]
        raise InvalidParameter(f"This cannot be asked for: {problems[0]}.", problems=problems) from None


def spec_of(given: str | Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """A selector by its kind, or by its fields."""
    return {"kind": given} if isinstance(given, str) else given


def values_of(request: BaseModel) -> dict[str, Any]:
    """The fields of a request that are set."""
    return request.model_dump(mode="json", exclude_none=True)


def cook_values(
    sample: SampleSource | None,
    effort: str | None,
    name: str | None,
    selector: str | Mapping[str, Any] | None,
    more: Mapping[str, Any],
) -> dict[str, Any]:
    """The fields of a cook that does not wait; raises InvalidParameter with what is wrong."""
    mixing = {"method": more["mixing"]} if isinstance(more.get("mixing"), str) else more.get("mixing")
    fields = {**more, "mixing": mixing}
    request = request_of(CookRequest, sample=sample, effort=effort, name=name, selector=spec_of(selector), **fields)
    return {**values_of(request), "wait": 0}


def id_of(job: Job | str) -> str:
    """The id of a job."""
    return job if isinstance(job, str) else job.id
