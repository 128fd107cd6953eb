"""The code of the last release: a history that could have it and does not fails where CI is set, others are skipped."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import tests.last_release


def git(folder: Path, *words: str) -> None:
    who = ("-c", "user.name=x", "-c", "user.email=x@x.example", "-c", "commit.gpgsign=false")
    subprocess.run(["git", "-C", str(folder), *who, *words], check=True, capture_output=True)


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """A repository of two commits, neither of which is the last release."""
    folder = tmp_path / "other"
    folder.mkdir()
    git(folder, "init", "-q")
    for number in range(2):
        git(folder, "commit", "-q", "--allow-empty", "-m", str(number))
    return folder


def asked(folder: Path, monkeypatch: pytest.MonkeyPatch, *, ci: str | None) -> None:
    monkeypatch.setattr(tests.last_release, "REPOSITORY", folder)
    monkeypatch.delenv("CI", raising=False)
    if ci:
        monkeypatch.setenv("CI", ci)
    tests.last_release.last_release(folder / "code")


def test_a_whole_history_without_it_fails_in_ci_and_is_skipped_elsewhere(
    other: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(pytest.fail.Exception, match="does not have the last release"):
        asked(other, monkeypatch, ci="true")
    with pytest.raises(pytest.skip.Exception, match="does not have the last release"):
        asked(other, monkeypatch, ci=None)


def test_a_shallow_history_or_none_is_skipped(other: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    git(tmp_path, "clone", "-q", "--depth", "1", other.as_uri(), "shallow")
    with pytest.raises(pytest.skip.Exception, match="does not have the last release"):
        asked(tmp_path / "shallow", monkeypatch, ci="true")
    with pytest.raises(pytest.skip.Exception, match="no checkout"):
        asked(tmp_path / "nothing", monkeypatch, ci="true")
