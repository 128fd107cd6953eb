"""A value of a file that pydantic refused, as one of our errors."""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from registry.errors import InvalidManifest, UnknownMethod, more_problems


def refusal(error: ValidationError, file: Path) -> InvalidManifest | UnknownMethod:
    """Every problem of a validation as one of our errors; the first is the message."""
    found = error.errors(include_url=False, include_input=False)
    problems = [f"{'.'.join(map(str, e['loc'])) or 'the file'}: {e['msg']}" for e in found]
    unknown = found[0]["type"] == "union_tag_invalid" or found[0]["loc"][-1:] == ("structure",)
    kind = UnknownMethod if unknown else InvalidManifest
    return kind(
        f"{file}: {problems[0]}{more_problems(len(problems))}.",
        param=str(found[0]["loc"][-1]) if found[0]["loc"] else None,
        problems=problems if len(problems) > 1 else (),
    )
