"""Arguments of the typed clients: models by name or as values, texts, and requests checked before they are sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError

from adaptersoup.values import Adapter, Listed, Soup
from registry.errors import InvalidParameter
from registry.spec import CookRequest, Passage, SampleSource
from registry.spec.wording import describe_error
from service.http.schemas.adapters import ListedAdapter
from service.http.schemas.jobs import Job

T = TypeVar("T", bound=BaseModel)
Model = str | Listed | Adapter | Soup
"""The name of an adapter, a soup or a base model (`base/...`), or a value of one."""
Text = Passage | Mapping[str, str]
"""A text, or a prompt with its answer: a `PromptAnswer`, or {"prompt": ..., "answer": ...}."""
_PASSAGES = TypeAdapter(list[Passage])


def model_name(model: Model) -> str:
    """The name of a model in requests."""
    if isinstance(model, Soup):
        return model.model
    return model.ref if isinstance(model, ListedAdapter) else model


def check_texts(texts: Sequence[Text]) -> list[Passage]:
    """A list of passages; raises InvalidParameter for a single string, and for items that are no passages."""
    try:
        return _PASSAGES.validate_python(texts)
    except ValidationError:
        raise InvalidParameter(
            "Give a list of passages: strings, or objects with a 'prompt' and its 'answer'.", param="texts"
        ) from None


def request_of(kind: type[T], **fields: Any) -> T:
    """A request with these fields, without those that are None; raises InvalidParameter if they are invalid."""
    try:
        return kind.model_validate({name: value for name, value in fields.items() if value is not None})
    except ValidationError as error:
        problems = [
            f"{'.'.join(map(str, row['loc'])) or 'the request'}: {describe_error(row)}" for row in error.errors()
        ]
        raise InvalidParameter(f"The request is not valid: {problems[0]}.", problems=problems) from None


def spec_of(selector: str | Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """The fields of a selector named by its kind; a mapping is returned unchanged."""
    return {"kind": selector} if isinstance(selector, str) else selector


def to_json(request: BaseModel) -> dict[str, Any]:
    """The fields of a request that are not None, as JSON values."""
    return request.model_dump(mode="json", exclude_none=True)


def cook_body(
    sample: SampleSource | None,
    *,
    selector: str | Mapping[str, Any] | None,
    mixing: str | Mapping[str, Any] | None = None,
    **fields: Any,
) -> dict[str, Any]:
    """The body of a cook request that does not wait; raises InvalidParameter if a field is invalid."""
    method = {"method": mixing} if isinstance(mixing, str) else mixing
    request = request_of(CookRequest, sample=sample, selector=spec_of(selector), mixing=method, **fields)
    return {**to_json(request), "wait": 0}


def id_of(job: Job | str) -> str:
    """The id of a job."""
    return job if isinstance(job, str) else job.id
