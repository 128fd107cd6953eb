"""What a command line that succeeded says."""

from __future__ import annotations


def done(outcome: tuple[int, str, str]) -> tuple[str, str]:
    """stdout and stderr of a command line; its exit code is 0."""
    code, out, err = outcome
    assert code == 0, err
    return out, err
