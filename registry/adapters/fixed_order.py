"""Linear algebra whose results are the same bits on every machine, for soups that are more than sums.

Products go through BLAS, but on numbers cut to so few bits that every partial sum is exact: then the order in which
a processor adds, its vector instructions and its threads change nothing (Ozaki et al., Numerical Algorithms 59, 2012).
Everything else is element by element in a fixed order, by operations that IEEE 754 rounds correctly (+ - * / sqrt).
All arrays are float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

MANTISSA = 53
"""Bits of a float64's significand."""


def product(left: Array, right: Array) -> Array:
    """left (n, k) times right (k, m), to about 40 bits of the largest entries of a row and a column."""
    bits = (MANTISSA - max(1, left.shape[1] - 1).bit_length()) // 2
    left_scale, left_high, left_low = _slices(left, bits, axis=1)
    right_scale, right_high, right_low = _slices(right, bits, axis=0)
    small = left_high @ right_low + left_low @ right_high
    found: Array = (
        (left_high @ right_high + small * 2.0**-bits) * (left_scale * 2.0**-bits) * (right_scale * 2.0**-bits)
    )
    return found


def _slices(values: Array, bits: int, *, axis: int) -> tuple[Array, Array, Array]:
    """A power of two for each line, and its values over it as two slices of whole numbers of at most 2^bits."""
    largest = np.abs(values).max(axis=axis, keepdims=True, initial=0.0)
    scale = np.ldexp(1.0, np.frexp(largest)[1])
    scaled = values / scale * 2.0**bits
    high = np.rint(scaled)
    return scale, high, np.rint((scaled - high) * 2.0**bits)


def total(values: Array, axis: int) -> Array:
    """The sum along an axis, halves added to halves."""
    rows = np.moveaxis(values, axis, 0)
    while len(rows) > 1:
        half = len(rows) // 2
        added = rows[:half] + rows[half : 2 * half]
        rows = np.concatenate([added, rows[2 * half :]]) if len(rows) % 2 else added
    return rows[0] if len(rows) else np.zeros(rows.shape[1:])


def solve(matrix: Array, right: Array) -> Array:
    """X with matrix X = right, for a positive definite matrix (n, n) and right (n, m), by elimination."""
    work = np.concatenate([matrix, right], axis=1)
    size = len(matrix)
    for at in range(size):
        work[at + 1 :] -= (work[at + 1 :, at] / work[at, at])[:, None] * work[at]
    found = work[:, size:]
    for at in reversed(range(size)):
        found[at] /= work[at, at]
        found[:at] -= work[:at, at][:, None] * found[at]
    return found


def root(matrix: Array) -> Array:
    """R (n, n) with R R^T = matrix, which is positive semidefinite: Cholesky's with the largest pivot first.

    What is below 1e-10 of the largest entry is left out, and the columns after it are 0.
    """
    rest, found = matrix.copy(), np.zeros_like(matrix)
    least = 1e-10 * float(matrix.diagonal().max(initial=0.0))
    for at in range(len(matrix)):
        pivot = int(rest.diagonal().argmax())
        if rest[pivot, pivot] <= least:
            break
        found[:, at] = rest[:, pivot] / np.sqrt(rest[pivot, pivot])
        rest -= found[:, at][:, None] * found[:, at]
    return found


def eigen(matrix: Array) -> tuple[Array, Array]:
    """Eigenvalues (n,) of a symmetric matrix (n, n), largest first, and its eigenvectors as columns (n, n).

    Householder's reflections to a tridiagonal matrix, then QL steps with implicit shifts (Bowdler et al., Numerische
    Mathematik 11, 1968).
    """
    diagonal, beside, rows = _tridiagonal(matrix)
    for at in range(len(diagonal)):
        while (end := _uncoupled(diagonal, beside, at)) > at:
            _ql_step(diagonal, beside, rows, at, end)
    values = np.array(diagonal)
    order = np.argsort(-values, kind="stable")
    return values[order], rows[order].T


def _tridiagonal(matrix: Array) -> tuple[list[float], list[float], Array]:
    """The diagonal, the entries beside it with a 0 after them, and the basis as rows, in which it is tridiagonal."""
    work, rows = matrix.copy(), np.eye(len(matrix))
    for at in range(1, len(work) - 1):
        mirror = work[at:, at - 1].copy()
        mirror[0] += np.copysign(np.sqrt(total(mirror * mirror, 0)), mirror[0])
        size = float(np.sqrt(total(mirror * mirror, 0)))
        if size == 0.0:
            continue
        mirror /= size
        for array in (work[at:], work[:, at:].T, rows[at:]):
            array -= 2.0 * mirror[:, None] * total(mirror[:, None] * array, 0)
    return work.diagonal().tolist(), [*work.diagonal(-1).tolist(), 0.0], rows


def _uncoupled(diagonal: list[float], beside: list[float], start: int) -> int:
    """The first place from `start` on whose entry beside the diagonal is nothing next to those on it."""
    for at in range(start, len(diagonal) - 1):
        if abs(beside[at]) <= 2.0**-MANTISSA * (abs(diagonal[at]) + abs(diagonal[at + 1])):
            return at
    return len(diagonal) - 1


def _ql_step(diagonal: list[float], beside: list[float], rows: Array, start: int, end: int) -> None:
    """One QL step on the block from `start` to `end`, in place."""
    shift = (diagonal[start + 1] - diagonal[start]) / (2.0 * beside[start])
    size = math.sqrt(shift * shift + 1.0)
    bulge = diagonal[end] - diagonal[start] + beside[start] / (shift + math.copysign(size, shift))
    sine, cosine, moved = 1.0, 1.0, 0.0
    for at in range(end - 1, start - 1, -1):
        far, near = sine * beside[at], cosine * beside[at]
        size = math.sqrt(far * far + bulge * bulge)
        beside[at + 1] = size
        if size == 0.0:  # two blocks after all
            diagonal[at + 1] -= moved
            beside[end] = 0.0
            return
        sine, cosine = far / size, bulge / size
        bulge = diagonal[at + 1] - moved
        turned = (diagonal[at] - bulge) * sine + 2.0 * cosine * near
        moved = sine * turned
        diagonal[at + 1] = bulge + moved
        bulge = cosine * turned - near
        upper, lower = rows[at], rows[at + 1]
        rows[at], rows[at + 1] = cosine * upper - sine * lower, sine * upper + cosine * lower
    diagonal[start] -= moved
    beside[start], beside[end] = bulge, 0.0


# --- activations ----------------------------------------------------------------------------------


def _relu(values: Array) -> Array:
    return np.maximum(values, 0.0)


def _exp_of_negative(values: Array) -> Array:
    """e^x for x <= 0, to 1e-15; 0 below e^-700."""
    near = np.maximum(values, -700.0)
    halvings = np.rint(near * 1.4426950408889634)
    rest = near - halvings * 0.693147180369123816490 - halvings * 1.90821492927058770002e-10  # ln 2 in two parts
    found = np.ones_like(rest)
    for number in range(14, 0, -1):
        found = 1.0 + found * rest / number
    return np.ldexp(found, halvings.astype(np.int64)) * (values >= -700.0)


def _swish(values: Array) -> Array:
    small = _exp_of_negative(-np.abs(values))
    return values * np.where(values >= 0.0, 1.0, small) / (1.0 + small)


def _gelu(values: Array) -> Array:
    """x Phi(x) to 1e-7: erf as Abramowitz and Stegun have it (7.1.26)."""
    size = np.abs(values) * np.sqrt(0.5)
    part = 1.0 / (1.0 + 0.3275911 * size)
    tail = np.zeros_like(part)
    for factor in (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592):
        tail = (tail + factor) * part
    tail = 0.5 * tail * _exp_of_negative(-size * size)
    found: Array = values * np.where(values >= 0.0, 1.0 - tail, tail)
    return found


ACTIVATIONS: dict[str, Callable[[Array], Array]] = {"relu": _relu, "gelu": _gelu, "swish": _swish}
"""By the names that bottlenecks call them."""
