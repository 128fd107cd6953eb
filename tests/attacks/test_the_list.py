"""The attacks as a list: how many there are, where SECURITY.md says they are, and that a hit would be noticed."""

from __future__ import annotations

import importlib
import pickle
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.attacks.attack import Attack, Said
from tests.attacks.target import Target
from tests.attacks.watched import CANARY, watched
from tests.repository import REPOSITORY

HERE = Path(__file__).parent
FEWEST = 120
"""What the issue asks for."""


def groups() -> dict[str, tuple[Any, ...]]:
    """The attacks of each module of this folder that has some, by its path in the repository."""
    modules = {path: importlib.import_module(f"tests.attacks.{path.stem}") for path in sorted(HERE.glob("test_*.py"))}
    found = {path.relative_to(REPOSITORY).as_posix(): getattr(one, "ATTACKS", ()) for path, one in modules.items()}
    return {path: attacks for path, attacks in found.items() if attacks}


def test_there_are_enough_and_no_two_are_one() -> None:
    attacks = [attack for group in groups().values() for attack in group]
    names, sentences = ({getattr(one, field) for one in attacks} for field in ("name", "tries"))
    assert len(names) == len(attacks) >= FEWEST
    assert len(sentences) > 0.9 * len(attacks)  # a sentence may serve for one attack by several ways
    assert [one.tries for one in attacks if not re.fullmatch(r"[A-Z].*\.", one.tries)] == []


def test_security_md_names_every_group_and_no_other() -> None:
    text = (REPOSITORY / "SECURITY.md").read_text()
    assert set(re.findall(r"tests/attacks/test_\w+\.py", text)) == set(groups())
    others = set(re.findall(r"\]\((tests/[\w/.]+)\)", text))
    assert others > set(groups())
    assert [path for path in others if not (REPOSITORY / path).exists()] == []


# --- what would be noticed ------------------------------------------------------------------------


def attack(strike: Any) -> Attack:
    return Attack("a", "A.", 404, "not_found", "", strike)


def gone(target: Target) -> Said:
    return target.ask("GET", "/v1/adapters/acme/nobody")


def test_an_attack_that_gets_through_is_noticed(target: Target) -> None:
    target.withstands(attack(gone))
    for status, code, says in ((403, "not_found", ""), (404, "forbidden", ""), (404, "not_found", "another sentence")):
        with pytest.raises(AssertionError):
            target.withstands(replace(attack(gone), status=status, code=code, says=says))


def test_whatever_is_left_or_lost_is_noticed(target: Target) -> None:
    stray = target.world.runtime.settings.blobs_dir / "stray"

    def left(target: Target) -> Said:
        stray.write_bytes(b"x")
        return gone(target)

    def row(target: Target) -> Said:
        target.world.key(["read"], ["acme"])
        return gone(target)

    def held(target: Target) -> Said:
        target.world.app.state.bodies.memory.change("key-x", 10, of_request=0)
        return gone(target)

    for strike in (left, row, held):
        with pytest.raises(AssertionError):
            target.withstands(attack(strike))
    stray.unlink()
    target.world.app.state.bodies.memory.change("key-x", -10, of_request=10)
    target.withstands(attack(gone))


def test_whatever_is_opened_or_started_is_noticed(tmp_path: Path) -> None:
    secret = tmp_path / CANARY
    secret.write_text("x")
    with watched() as done:
        secret.read_text()
        pickle.loads(pickle.dumps(Path))
        subprocess.run([sys.executable, "-c", ""], check=True)
    assert done[0].startswith("open ")
    assert "pickle.find_class" in done
    assert "subprocess.Popen" in done
