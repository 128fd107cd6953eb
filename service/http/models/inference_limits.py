"""Check inference requests: lengths and numbers of texts, token ids, choices and alternatives, schemas of answers.

Also limits the requests that embed a sample while they wait.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from registry.errors import Busy, InvalidParameter, TooLarge
from registry.spec import Passage, PromptAnswer, full_text
from service.engine.json_schema import ANY_OBJECT, validate_schema
from service.http.models.named_models import ResolvedModel
from service.http.schemas.sampling import JsonSchemaFormat, ResponseFormat, TextFormat
from service.services import Services
from service.settings import Settings


@contextmanager
def limit_embeddings(services: Services) -> Iterator[None]:
    """Count as one of the samples embedded at once, each of which blocks a thread; raises Busy at the limit."""
    if not services.selections.acquire(blocking=False):
        raise Busy("The server is embedding the maximum number of samples: try again.", retry_after=2)
    try:
        yield
    finally:
        services.selections.release()


def check_text(text: str | Sequence[int], settings: Settings, *, param: str) -> None:
    """Raise TooLarge for a text, or a list of token ids, longer than `SOUP_MAX_TEXT_CHARS`."""
    limit = settings.max_text_chars
    if len(text) > limit:
        unit = "characters" if isinstance(text, str) else "token ids"
        raise TooLarge(f"'{param}' has {len(text)} {unit}; at most {limit} are taken.", param=param)


def check_texts(texts: Sequence[Passage | Sequence[int]], settings: Settings, *, param: str) -> None:
    """Raise InvalidParameter for an empty text or list of token ids, TooLarge for too many or one that is too long."""
    limit = settings.max_texts
    if len(texts) > limit:
        raise TooLarge(f"'{param}' holds {len(texts)} texts; at most {limit} are taken.", param=param)
    for number, text in enumerate(texts):
        if isinstance(text, PromptAnswer) and not text.answer:
            raise InvalidParameter(f"Text {number} of '{param}' has no answer.", param=param)
        content = full_text(text) if isinstance(text, str | PromptAnswer) else text
        if not content:
            raise InvalidParameter(f"Text {number} of '{param}' is empty.", param=param)
        check_text(content, settings, param=f"{param}.{number}")


def check_ids(tokens: Sequence[int], model: ResolvedModel, *, param: str) -> None:
    """Raise InvalidParameter for an id outside of the vocabulary."""
    size = model.base.shape.vocab_size
    if any(not 0 <= token < size for token in tokens):
        raise InvalidParameter(f"'{param}' holds an id outside of the vocabulary (0 to {size - 1}).", param=param)


def check_best_of(best_of: int | None, settings: Settings, *, n: int, stream: bool) -> None:
    """Raise InvalidParameter if `best_of` is below `n`, beyond the largest `n`, or above 1 in a stream."""
    if best_of is None:
        return
    if best_of < n:
        raise InvalidParameter(
            f"'best_of' is {best_of} and 'n' is {n}: 'best_of' must be at least 'n'.", param="best_of"
        )
    if best_of > settings.max_choices:
        raise InvalidParameter(
            f"'best_of' is {best_of}; at most {settings.max_choices} are generated.", param="best_of"
        )
    if stream and best_of > 1:
        raise InvalidParameter(
            f"'best_of' is {best_of}: choosing the best needs complete answers, so leave 'stream' out.",
            param="best_of",
        )


def check_sampling(settings: Settings, *, n: int, logprobs: int | None, logprobs_name: str) -> None:
    """Raise InvalidParameter if `n` or the alternatives per token go beyond the settings."""
    if n > settings.max_choices:
        raise InvalidParameter(f"'n' is {n}; at most {settings.max_choices} are given.", param="n")
    if logprobs is not None and logprobs > settings.max_logprobs:
        raise InvalidParameter(
            f"'{logprobs_name}' is {logprobs}; at most {settings.max_logprobs} are given.", param=logprobs_name
        )


def schema_of(response_format: ResponseFormat | None) -> str | None:
    """Return the JSON schema of a response format, None for plain text.

    Raises InvalidParameter for one that is not supported, TooLarge for one that is too large.
    """
    if response_format is None or isinstance(response_format, TextFormat):
        return None
    if isinstance(response_format, JsonSchemaFormat):
        return validate_schema(response_format.json_schema.schema_)
    return ANY_OBJECT
