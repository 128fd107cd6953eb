"""Checks of a command line's outcome: that it succeeded, or that it was refused."""

from __future__ import annotations


def done(outcome: tuple[int, str, str]) -> tuple[str, str]:
    """stdout and stderr of a command line; its exit code is 0."""
    code, out, err = outcome
    assert code == 0, err
    return out, err


def refused(outcome: tuple[int, str, str], code: int = 1) -> str:
    """stderr of a command line that wrote nothing on stdout and ended with an exit code."""
    exit_code, out, err = outcome
    assert (exit_code, out) == (code, ""), err
    assert "Traceback" not in err
    return err
