"""JSON that came from people or with a file: read strictly, refused in one sentence. Standard library only."""

from __future__ import annotations

import json
import math
from typing import Any

from registry.errors import Invalid, InvalidManifest


def loads_strict(
    text: str | bytes, *, what: str = "The JSON", error: type[Invalid] = InvalidManifest, max_keys: int | None = None
) -> Any:
    """A JSON value; raises `error` for duplicate keys, NaN, numbers beyond what a double holds, bad UTF-8, lone
    surrogates, objects of more than `max_keys` keys, absurd depth or broken syntax. Messages begin with `what`."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if max_keys is not None and len(pairs) > max_keys:
            raise error(f"{what} holds an object with {len(pairs)} keys; at most {max_keys} are taken.")
        found: dict[str, Any] = {}
        for key, value in pairs:
            if key in found:
                raise error(f"{what} has the key {key[:80]!r} twice in one object.")
            found[key] = value
        return found

    def finite(number: str) -> float:
        value = float(number)
        if math.isinf(value):
            raise error(f"{what} holds the number {number[:40]}, which is larger than any that can be kept.")
        return value

    def no_constant(name: str) -> Any:
        raise error(f"{what} holds {name}, which is not JSON.")

    try:
        decoded = text.decode("utf-8") if isinstance(text, bytes) else text
        value = json.loads(decoded, object_pairs_hook=unique, parse_float=finite, parse_constant=no_constant)
        if "\\u" in decoded:  # an escaped half of a surrogate pair is a string no UTF-8 can hold
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeDecodeError as problem:
        raise error(f"{what} is not valid UTF-8 at byte {problem.start}.") from None
    except UnicodeEncodeError:
        raise error(f"{what} holds half of a surrogate pair, which is no text.") from None
    except RecursionError:
        raise error(f"{what} is nested too deeply.") from None
    except json.JSONDecodeError as problem:
        raise error(f"{what} is broken at line {problem.lineno}, column {problem.colno}: {problem.msg}.") from None
    except ValueError:  # the interpreter's limit on the digits of an integer
        raise error(f"{what} holds a number of thousands of digits, which cannot be read.") from None
    return value
