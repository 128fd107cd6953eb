"""Roots and eigenvectors of many small symmetric matrices at once, the same bits on every machine.

A LoRA has a few hundred modules, each with a matrix as small as the ranks: one operation for all of them at a time.
What becomes of a matrix does not depend on the others beside it. Used by `lora_narrowing`; all arrays are float64, and
every operation is element by element as in `fixed_order`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from registry.adapters.fixed_order import MANTISSA, Array, total

Numbers = npt.NDArray[np.int64]


def root(matrices: Array) -> Array:
    """R (k, n, n) with R R^T = matrix for each, positive semidefinite: Cholesky's with the largest pivot first.

    What is below 1e-10 of the largest entry is left out, and the columns after it are 0.
    """
    rest, found = matrices.copy(), np.zeros_like(matrices)
    every = np.arange(len(matrices))
    diagonals = rest.diagonal(axis1=1, axis2=2)
    least = 1e-10 * diagonals.max(axis=1, initial=0.0)
    going_on = np.ones(len(matrices), dtype=np.bool_)
    for at in range(matrices.shape[1]):
        pivot = diagonals.argmax(axis=1)
        largest = rest[every, pivot, pivot]
        going_on &= largest > least
        size = np.sqrt(np.where(going_on, largest, 1.0))
        column = np.where(going_on[:, None], rest[every, :, pivot] / size[:, None], 0.0)
        found[:, :, at] = column
        rest -= column[:, :, None] * column[:, None, :]
    return found


def eigen(matrices: Array) -> tuple[Array, Array]:
    """Eigenvalues (k, n) of symmetric matrices (k, n, n), largest first, and the eigenvectors as columns (k, n, n).

    Householder's reflections to a tridiagonal matrix, then QL steps with implicit shifts (Bowdler et al., Numerische
    Mathematik 11, 1968).
    """
    found = _tridiagonal(matrices)
    start = np.zeros(len(matrices), dtype=np.int64)
    while True:
        start, end = found.blocks(start)
        left = np.flatnonzero(start < matrices.shape[1] - 1)
        if not len(left):
            break
        _ql_step(found, left, start[left], end[left])
    order = np.argsort(-found.diagonal, axis=1, kind="stable")
    rows = np.take_along_axis(found.rows, order[:, :, None], axis=1)
    return np.take_along_axis(found.diagonal, order, axis=1), rows.swapaxes(1, 2)


@dataclass
class _Tridiagonal:
    """Matrices on the way to their eigenvalues.

    The diagonals (k, n), the entries `beside` them with a 0 after them (k, n), and the bases as `rows` (k, n, n) in
    which they are so.
    """

    diagonal: Array
    beside: Array
    rows: Array

    def blocks(self, start: Numbers) -> tuple[Numbers, Numbers]:
        """The first and last place of each matrix's first block of several coupled places, from its `start` on.

        Places are coupled where the entry between them is something next to those on the diagonal. The first place is
        the last of the matrix where no block is left.
        """
        size = np.abs(self.diagonal)
        last = size.shape[1] - 1
        apart = np.ones(size.shape, dtype=np.bool_)
        apart[:, :-1] = np.abs(self.beside[:, :-1]) <= 2.0**-MANTISSA * (size[:, :-1] + size[:, 1:])
        places = np.arange(last + 1)
        coupled = ~apart & (places >= start[:, None])
        first = np.where(coupled.any(axis=1), coupled.argmax(axis=1), last)
        return first, (apart & (places >= first[:, None])).argmax(axis=1)


def _tridiagonal(matrices: Array) -> _Tridiagonal:
    count, size = matrices.shape[:2]
    work, rows = matrices.copy(), np.tile(np.eye(size), (count, 1, 1))
    for at in range(1, size - 1):
        mirror = work[:, at:, at - 1].copy()
        mirror[:, 0] += np.copysign(np.sqrt(total(mirror * mirror, 1)), mirror[:, 0])
        length = np.sqrt(total(mirror * mirror, 1))
        there = length != 0.0
        mirror /= np.where(there, length, 1.0)[:, None]
        for array in (work[:, at:], work[:, :, at:].swapaxes(1, 2), rows[:, at:]):
            change = 2.0 * mirror[:, :, None] * total(mirror[:, :, None] * array, 1)[:, None]
            array -= change if there.all() else np.where(there[:, None, None], change, 0.0)
    beside = np.zeros((count, size))
    beside[:, :-1] = work.diagonal(-1, axis1=1, axis2=2)
    return _Tridiagonal(work.diagonal(axis1=1, axis2=2).copy(), beside, rows)


@dataclass
class _Turns:
    """The rotations of a QL step that come next, one for each of the matrices `which`: of place `at` with the next.

    The step goes from `end` down to `start`; the others are what a rotation needs of the one before it.
    """

    which: Numbers
    start: Numbers
    end: Numbers
    at: Numbers
    bulge: Array
    sine: Array
    cosine: Array
    moved: Array

    def only(self, kept: npt.NDArray[np.bool_]) -> _Turns:
        """Those of some of the matrices."""
        return _Turns(*(array[kept] for array in vars(self).values()))


def _ql_step(found: _Tridiagonal, which: Numbers, start: Numbers, end: Numbers) -> None:
    """One QL step in place, on the block from `start` to `end` of each of these matrices."""
    diagonal, beside = found.diagonal, found.beside
    shift = (diagonal[which, start + 1] - diagonal[which, start]) / (2.0 * beside[which, start])
    size = np.sqrt(shift * shift + 1.0)
    bulge = diagonal[which, end] - diagonal[which, start] + beside[which, start] / (shift + np.copysign(size, shift))
    one = np.ones_like(bulge)
    turns = _Turns(which, start, end, end - 1, bulge, one, one, np.zeros_like(bulge))
    while len(turns.which):
        turns = _turned(found, turns)


def _turned(found: _Tridiagonal, turns: _Turns) -> _Turns:
    """These rotations done in place; those that come next."""
    diagonal, beside, rows = found.diagonal, found.beside, found.rows
    far, near = turns.sine * beside[turns.which, turns.at], turns.cosine * beside[turns.which, turns.at]
    size = np.sqrt(far * far + turns.bulge * turns.bulge)
    beside[turns.which, turns.at + 1] = size
    whole = size != 0.0
    if not whole.all():  # two blocks after all
        apart, turns, far, near, size = turns.only(~whole), turns.only(whole), far[whole], near[whole], size[whole]
        diagonal[apart.which, apart.at + 1] -= apart.moved
        beside[apart.which, apart.end] = 0.0
    which, at = turns.which, turns.at
    sine, cosine = far / size, turns.bulge / size
    bulge = diagonal[which, at + 1] - turns.moved
    turned = (diagonal[which, at] - bulge) * sine + 2.0 * cosine * near
    moved = sine * turned
    diagonal[which, at + 1] = bulge + moved
    upper, lower = rows[which, at], rows[which, at + 1]
    rows[which, at] = cosine[:, None] * upper - sine[:, None] * lower
    rows[which, at + 1] = sine[:, None] * upper + cosine[:, None] * lower
    after = replace(turns, at=at - 1, bulge=cosine * turned - near, sine=sine, cosine=cosine, moved=moved)
    going_on = at > turns.start
    if not going_on.all():
        done, after = after.only(~going_on), after.only(going_on)
        diagonal[done.which, done.start] -= done.moved
        beside[done.which, done.start], beside[done.which, done.end] = done.bulge, 0.0
    return after
