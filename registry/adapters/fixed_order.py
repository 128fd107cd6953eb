"""Linear algebra whose results are the same bits on every machine, for soups that are more than sums.

Products go through BLAS, but on numbers cut to so few bits that every partial sum is exact: then the order in which
a processor adds, its vector instructions and its threads change nothing (Ozaki et al., Numerical Algorithms 59, 2012).
Everything else is element by element in a fixed order, by operations that IEEE 754 rounds correctly (+ - * / sqrt).
All arrays are float64.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

MANTISSA = 53
"""Bits of a float64's significand."""


def product(left: Array, right: Array) -> Array:
    """left (..., n, k) times right (..., k, m), to about 40 bits of the largest entries of a row and a column."""
    bits = _bits(left.shape[-1])
    left_scale, left_high, left_low = _slices(left, bits, axis=-1)
    right_scale, right_high, right_low = _slices(right, bits, axis=-2)
    small = left_high @ right_low + left_low @ right_high
    return _put_together(left_high @ right_high, small, left_scale, right_scale, bits)


def gram(values: Array) -> Array:
    """values (n, k) times its transpose: the bits of `product`, for two thirds of its work and half of its memory."""
    bits = _bits(values.shape[-1])
    scale, high, low = _slices(values, bits, axis=-1)
    small = high @ low.T
    return _put_together(high @ high.T, small + small.T, scale, scale.T, bits)


def _bits(inner: int) -> int:
    """Of a slice, so that a sum of `inner` products of two slices is exact."""
    return (MANTISSA - max(1, inner - 1).bit_length()) // 2


def _put_together(high: Array, small: Array, left_scale: Array, right_scale: Array, bits: int) -> Array:
    found: Array = (high + small * 2.0**-bits) * (left_scale * 2.0**-bits) * (right_scale * 2.0**-bits)
    return found


def _slices(values: Array, bits: int, *, axis: int) -> tuple[Array, Array, Array]:
    """A power of two for each line, and its values over it as two slices of whole numbers of at most 2^bits."""
    most = values.max(axis=axis, keepdims=True, initial=0.0)
    scale = np.ldexp(1.0, np.frexp(np.maximum(most, -values.min(axis=axis, keepdims=True, initial=0.0)))[1])
    low = values / scale
    low *= 2.0**bits
    high = np.rint(low)
    low -= high
    low *= 2.0**bits
    return scale, high, np.rint(low, out=low)


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
