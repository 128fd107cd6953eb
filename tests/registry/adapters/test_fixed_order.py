"""Linear algebra in a fixed order: right to the digits it promises, and the same bits whatever computes it."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from registry.adapters.fixed_order import ACTIVATIONS, gram, product, solve, total
from registry.adapters.fixed_order_eigen import eigen, root
from tests.other_processor import elsewhere

sizes = st.integers(1, 24)
seeds = st.integers(0, 2**32 - 1)


def drawn(seed: int, *size: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(size)


@given(seeds, sizes, sizes, sizes, st.integers(-60, 60))
def test_a_product_is_right_to_forty_bits(seed: int, rows: int, inner: int, columns: int, power: int) -> None:
    left, right = drawn(seed, rows, inner) * 2.0**power, drawn(seed + 1, inner, columns)
    largest = np.abs(left).max(1, keepdims=True) * np.abs(right).max(0)
    assert (np.abs(product(left, right) - left @ right) <= 2.0**-39 * inner * largest).all()


def test_a_product_does_not_depend_on_the_order_of_additions() -> None:
    left, right = drawn(0, 40, 3000), drawn(1, 3000, 30)
    order = np.random.default_rng(2).permutation(3000)
    assert (product(left, right) == product(left[:, order], right[order])).all()
    assert (left @ right != left[:, order] @ right[order]).any()


def test_of_nothing_is_nothing() -> None:
    assert (product(np.zeros((3, 4)), drawn(0, 4, 2)) == 0).all()
    assert product(np.zeros((3, 0)), np.zeros((0, 2))).tolist() == [[0.0, 0.0]] * 3
    assert gram(np.zeros((2, 0))).tolist() == [[0.0, 0.0]] * 2
    assert (root(np.zeros((1, 3, 3))) == 0).all()
    assert eigen(np.zeros((1, 3, 3)))[0].tolist() == [[0.0] * 3]


@given(seeds, sizes, sizes)
def test_of_a_matrix_and_its_transpose_it_is_the_same_bits_in_less_time(seed: int, rows: int, inner: int) -> None:
    values = drawn(seed, rows, inner)
    assert np.array_equal(gram(values), product(values, values.T))


@given(seeds, st.integers(0, 9), st.sampled_from([0, 1]))
def test_sums(seed: int, count: int, axis: int) -> None:
    values = drawn(seed, *((count, 3) if axis == 0 else (3, count)))
    assert np.allclose(total(values, axis), values.sum(axis), rtol=1e-13, atol=1e-13)


@given(seeds, sizes)
def test_linear_equations(seed: int, size: int) -> None:
    factor = drawn(seed, size, size)
    matrix, right = factor @ factor.T + np.eye(size), drawn(seed + 1, size, 3)
    assert np.allclose(matrix @ solve(matrix, right), right, rtol=0, atol=1e-9 * np.abs(matrix).max())


@given(seeds, sizes, sizes)
def test_roots_of_matrices_of_any_rank(seed: int, size: int, rank: int) -> None:
    factor = drawn(seed, size, min(size, rank))
    matrix = factor @ factor.T
    (found,) = root(matrix[None])
    assert np.allclose(found @ found.T, matrix, rtol=0, atol=1e-9 * np.abs(matrix).max())


@given(seeds, sizes, sizes)
def test_eigenvalues_and_vectors_of_matrices_of_any_rank(seed: int, size: int, rank: int) -> None:
    factor = drawn(seed, size, min(size, rank))
    matrix = factor @ factor.T
    (values,), (vectors,) = eigen(matrix[None])
    largest = np.abs(matrix).max()
    assert np.allclose(values, np.linalg.eigvalsh(matrix)[::-1], rtol=0, atol=1e-12 * size * largest)
    assert np.allclose((vectors * values) @ vectors.T, matrix, rtol=0, atol=1e-12 * size * largest)
    assert np.allclose(vectors.T @ vectors, np.eye(size), rtol=0, atol=1e-12 * size)


@given(seeds, sizes, st.lists(st.integers(0, 24), min_size=1, max_size=5))
def test_what_becomes_of_a_matrix_does_not_depend_on_those_beside_it(seed: int, size: int, ranks: list[int]) -> None:
    """Of any ranks, 0 among them, and one that falls into blocks: each at its own pace."""
    factors = [drawn(seed + number, size, min(size, rank)) for number, rank in enumerate(ranks)]
    blocks = np.kron(np.eye(size), np.ones((2, 2)))[:size, :size]
    matrices = np.stack([*(one @ one.T for one in factors), blocks, np.eye(size)])
    for function in (lambda some: (root(some),), eigen):
        together = function(matrices)
        for number in range(len(matrices)):
            for all_of_them, alone in zip(together, function(matrices[number : number + 1]), strict=True):
                assert all_of_them[number].tobytes() == alone[0].tobytes()


@pytest.mark.parametrize(
    ("name", "theirs", "error"),
    [("relu", torch.relu, 0.0), ("gelu", torch.nn.functional.gelu, 5e-7), ("swish", torch.nn.functional.silu, 1e-13)],
)
def test_activations_are_those_of_torch(name: str, theirs, error: float) -> None:
    values = np.linspace(-800, 800, 200_001)
    values = np.concatenate([values, values / 100])
    assert np.abs(ACTIVATIONS[name](values) - theirs(torch.from_numpy(values)).numpy()).max() <= error


def digest_of_some() -> str:
    left, right = drawn(0, 70, 500), drawn(1, 500, 70)
    square = product(left, left.T)
    values, vectors = eigen(square[None])
    solved = solve(square, right[:70])
    some = (
        product(left, right),
        values,
        vectors,
        solved,
        root(square[None]),
        *(one(left) for one in ACTIVATIONS.values()),
    )
    return hashlib.sha256(b"".join(np.ascontiguousarray(one).tobytes() for one in some)).hexdigest()


@pytest.mark.slow
@pytest.mark.parametrize("capability", ["threads", "no AVX512", "no AVX2"])
def test_the_bits_do_not_depend_on_the_processor_or_the_threads(capability: str) -> None:
    settings = {
        "threads": {"OMP_NUM_THREADS": "2", "OPENBLAS_NUM_THREADS": "2"},
        "no AVX512": {"OPENBLAS_CORETYPE": "Haswell", "NPY_DISABLE_CPU_FEATURES": "AVX512F", "OMP_NUM_THREADS": "1"},
        "no AVX2": {"OPENBLAS_CORETYPE": "Sandybridge", "OPENBLAS_NUM_THREADS": "1"},
    }[capability]
    assert elsewhere(digest_of_some, settings) == digest_of_some()
