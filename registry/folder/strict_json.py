"""JSON and values that came from people: read strictly, refused in one sentence.

Called by the other modules of this folder, and by whoever else reads JSON that a person wrote.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from registry.errors import InvalidManifest, UnknownMethod


def loads_strict(text: str | bytes) -> Any:
    """A JSON value; raises InvalidManifest for duplicate keys, NaN, bad UTF-8, absurd depth or broken syntax."""
    try:
        decoded = text.decode("utf-8") if isinstance(text, bytes) else text
        return json.loads(decoded, object_pairs_hook=_unique, parse_constant=_refuse_constant)
    except UnicodeDecodeError as error:
        raise InvalidManifest(f"The JSON is not valid UTF-8 at byte {error.start}.") from None
    except RecursionError:
        raise InvalidManifest("The JSON is nested too deeply.") from None
    except json.JSONDecodeError as error:
        raise InvalidManifest(
            f"The JSON is broken at line {error.lineno}, column {error.colno}: {error.msg}."
        ) from None
    except ValueError as error:  # an integer of thousands of digits
        raise InvalidManifest(f"The JSON holds a value that cannot be read: {error}.") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise InvalidManifest(f"The JSON has the key {twice[:80]!r} twice in one object.")
    return found


def _refuse_constant(name: str) -> Any:
    raise InvalidManifest(f"The JSON holds {name}, which is not JSON.")


def refusal(error: ValidationError, file: Path) -> InvalidManifest | UnknownMethod:
    """Every problem of a validation as one of our errors; the first is the message."""
    found = error.errors(include_url=False, include_input=False)
    problems = [f"{'.'.join(map(str, e['loc'])) or 'the file'}: {e['msg']}" for e in found]
    kind = UnknownMethod if found[0]["loc"][-1:] in {("method",), ("structure",)} else InvalidManifest
    more = f" ({len(problems) - 1} more)" if len(problems) > 1 else ""
    return kind(f"{file}: {problems[0]}{more}.", param=str(found[0]["loc"][-1]) if found[0]["loc"] else None,
                problems=problems if more else ())  # fmt: skip
