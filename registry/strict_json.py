"""JSON that came from people or with a file: read strictly, refused in one sentence. Standard library only."""

from __future__ import annotations

import json
import math
from typing import Any

from registry.errors import InvalidManifest


def loads_strict(text: str | bytes) -> Any:
    """A JSON value; raises InvalidManifest for duplicate keys, NaN, numbers beyond what a double holds, bad UTF-8,
    absurd depth or broken syntax."""
    try:
        decoded = text.decode("utf-8") if isinstance(text, bytes) else text
        return json.loads(decoded, object_pairs_hook=_unique, parse_float=_finite, parse_constant=_refuse_constant)
    except UnicodeDecodeError as error:
        raise InvalidManifest(f"The JSON is not valid UTF-8 at byte {error.start}.") from None
    except RecursionError:
        raise InvalidManifest("The JSON is nested too deeply.") from None
    except json.JSONDecodeError as error:
        raise InvalidManifest(
            f"The JSON is broken at line {error.lineno}, column {error.colno}: {error.msg}."
        ) from None
    except ValueError:  # the interpreter's limit on the digits of an integer
        raise InvalidManifest("The JSON holds a number of thousands of digits, which cannot be read.") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise InvalidManifest(f"The JSON has the key {key[:80]!r} twice in one object.")
        found[key] = value
    return found


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise InvalidManifest(f"The JSON holds the number {text[:40]}, which is larger than any that can be kept.")
    return number


def _refuse_constant(name: str) -> Any:
    raise InvalidManifest(f"The JSON holds {name}, which is not JSON.")
