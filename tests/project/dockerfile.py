"""Reads a Dockerfile, for the tests of the image and of compose: instructions, stages, the variables that are left."""

from __future__ import annotations

import os
import re
import shlex

import pytest

from service.settings import Settings
from tests.repository import REPOSITORY

DOCKERFILE = (REPOSITORY / "Dockerfile").read_text()
COMPOSE = (REPOSITORY / "docker-compose.yml").read_text()

Line = tuple[str, str]


def lines(text: str) -> list[Line]:
    """(instruction, rest) of a Dockerfile, continued lines joined, comments gone."""
    uncommented = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    joined = re.sub(r"\\\n\s*", " ", uncommented)
    return [(name, rest.strip()) for name, _, rest in (line.partition(" ") for line in joined.splitlines()) if name]


def stages(text: str) -> list[list[Line]]:
    """The lines of each stage, from its FROM on; what stands before the first is left out."""
    grouped: list[list[Line]] = []
    for line in lines(text):
        if line[0] == "FROM":
            grouped.append([])
        if grouped:
            grouped[-1].append(line)
    return grouped


def rests(stage: list[Line], instruction: str) -> list[str]:
    return [rest for name, rest in stage if name == instruction]


def environment(text: str) -> dict[str, str]:
    """The variables of the image that is left at the end."""
    return dict(pair.split("=", 1) for rest in rests(stages(text)[-1], "ENV") for pair in shlex.split(rest))


def settings_from(variables: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Settings:
    """The settings in a container of the image that has these variables; those of others are left out."""
    for name in [name for name in os.environ if name.startswith("SOUP_")]:
        monkeypatch.delenv(name)
    for name, value in (environment(DOCKERFILE) | variables).items():
        if name.startswith("SOUP_"):
            monkeypatch.setenv(name, value)
    return Settings()
