"""Errors for invalid files of an adapter: the first problem is the message, `problems` has them all."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import PurePath
from typing import Any

from pydantic import ValidationError

from registry.errors import Invalid, InvalidManifest, UnknownMethod, more_problems
from registry.spec.wording import describe_error
from registry.tensor_file import refuse


def refusal(error: ValidationError, file: PurePath) -> Invalid:
    """The error for values in `file` that pydantic refuses; UnknownMethod where the method or structure is unknown."""
    details = error.errors(include_url=False, include_input=False)
    problems = [f"{'.'.join(map(str, e['loc'])) or 'the file'}: {describe_error(e)}" for e in details]
    location = details[0]["loc"]
    unknown = details[0]["type"] == "union_tag_invalid" or location[-1:] == ("structure",)
    kind = UnknownMethod if unknown else InvalidManifest
    return kind(
        f"{file}: {problems[0]}{more_problems(len(problems))}.",
        param=str(location[-1]) if location else None,
        problems=problems if len(problems) > 1 else (),
    )


def peft_refusal(unsupported: Sequence[str], problems: Sequence[str]) -> Invalid:
    """The error for a PEFT adapter: UnknownMethod where it has `unsupported` options, else InvalidManifest."""
    kind = UnknownMethod if unsupported else InvalidManifest
    error = refuse("PEFT adapter", [*unsupported, *problems], error=kind)
    error.param = "method" if unsupported else "peft_config"
    return error


def unsupported_fields(peft: Mapping[str, Any], *, refused: Mapping[str, str], supported: Collection[str]) -> list[str]:
    """One sentence for every field of a PEFT configuration that has a value and is `refused` or not `supported`."""
    used = [field for field in peft if not _is_empty(peft[field])]
    problems = [f"{field} is not supported: it means {refused[field]}." for field in refused if field in used]
    return problems + [
        f"Field {field[:60]!r} is not known here, and {str(peft[field])[:40]!r} may matter."
        for field in sorted(used)
        if field not in supported and field not in refused
    ]


def _is_empty(value: object) -> bool:
    return value is None or value is False or (isinstance(value, str | list | dict | tuple) and not value)
