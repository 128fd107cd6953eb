"""Errors for files of an adapter that cannot be taken: the first problem is the message, `problems` has them all."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import PurePath
from typing import Any

from pydantic import ValidationError

from registry.errors import Invalid, InvalidManifest, UnknownMethod, more_problems
from registry.spec.wording import said_of
from registry.tensor_file import refuse


def refusal(error: ValidationError, file: PurePath) -> Invalid:
    """The error for values in `file` that pydantic refuses; UnknownMethod where the method or structure is unknown."""
    found = error.errors(include_url=False, include_input=False)
    problems = [f"{'.'.join(map(str, e['loc'])) or 'the file'}: {said_of(e)}" for e in found]
    unknown = found[0]["type"] == "union_tag_invalid" or found[0]["loc"][-1:] == ("structure",)
    kind = UnknownMethod if unknown else InvalidManifest
    return kind(
        f"{file}: {problems[0]}{more_problems(len(problems))}.",
        param=str(found[0]["loc"][-1]) if found[0]["loc"] else None,
        problems=problems if len(problems) > 1 else (),
    )


def peft_refusal(unsupported: Sequence[str], problems: Sequence[str]) -> Invalid:
    """The error for a PEFT adapter: UnknownMethod where it asks for something `unsupported`, else InvalidManifest."""
    kind = UnknownMethod if unsupported else InvalidManifest
    error = refuse("PEFT adapter", [*unsupported, *problems], error=kind)
    error.param = "method" if unsupported else "peft_config"
    return error


def unsupported_fields(peft: Mapping[str, Any], *, refused: Mapping[str, str], known: Collection[str]) -> list[str]:
    """One sentence for every field of a PEFT configuration that asks for something, and is `refused` or not `known`."""
    asking = [field for field in peft if not _empty(peft[field])]
    found = [f"{field} is not supported: it means {refused[field]}." for field in refused if field in asking]
    return found + [
        f"Field {field[:60]!r} is not known here, and {str(peft[field])[:40]!r} may matter."
        for field in sorted(asking)
        if field not in known and field not in refused
    ]


def _empty(value: object) -> bool:
    return value is None or value is False or (isinstance(value, str | list | dict | tuple) and not value)
