"""Files made to harm: each is refused with one clear sentence before any library reads it; nothing else is raised."""

from __future__ import annotations

import json
import math
import struct

import pytest
import safetensors
import torch
from hypothesis import given
from hypothesis import strategies as st

from registry import tensor_file
from registry.adapters import create, paper_config, weights
from registry.adapters.weights import check_weights, load_tensors, save_tensors
from registry.errors import Incompatible, InvalidWeights, TooLarge
from registry.spec import BaseShape
from registry.tensor_file import MAX_HEADER_BYTES, MAX_PROBLEMS, MAX_TENSORS, parse, write

SHAPE = BaseShape(
    fingerprint="sha256:" + "0" * 64, model_type="gpt2", hidden_size=8, num_layers=2, context=64, vocab_size=300
)
CONFIG = paper_config("bapna_firat", bottleneck=3)
GOOD = save_tensors(create(CONFIG, SHAPE, seed=0).state_dict())
LIMIT = 2 * 10**6


def check(data, limit=LIMIT):
    return check_weights(data, CONFIG, SHAPE, max_bytes=limit)


def file(header, body=b""):
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(raw)) + raw + body


def table():
    (length,) = struct.unpack("<Q", GOOD[:8])
    return json.loads(GOOD[8 : 8 + length]), GOOD[8 + length :]


def refused(data, match, error=InvalidWeights):
    with pytest.raises(error, match=match) as caught:
        check(data)
    assert caught.value.param == "weights"
    assert len(caught.value.message) < 400
    return caught.value.problems


def test_the_good_file_is_good():
    report = check(GOOD)
    assert (report.dtype, report.parameters, report.bytes) == ("F32", 2 * (2 * 8 * 3 + 3 + 8 + 2 * 8), len(GOOD))


@pytest.mark.parametrize("length", [640, 896, 1152, 1408, 0x8B1F, 0x5A42])
def test_a_header_whose_length_looks_like_another_format_is_read(length):
    about = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}
    name = "x" * (length - len(json.dumps({"": about})))
    data = file(json.dumps({name: about}).encode(), bytes(4))
    assert struct.unpack("<Q", data[:8]) == (length,)
    assert list(parse(data, max_bytes=10**6).entries) == [name]


@pytest.mark.parametrize(
    ("data", "match"),
    [
        *[(struct.pack("<Q", length) + b"{}", "cut off") for length in (3, 100, MAX_HEADER_BYTES)],
        *[(bytes(size), "too few") for size in range(10)],
        *[(GOOD[:keep], "cut off") for keep in (10, 40, 200, len(GOOD) // 2, len(GOOD) - 1)],
        (file({"n" * 100_000: {"dtype": "bad", "shape": [0], "data_offsets": [0, 0]}}), "nnn' has unknown dtype"),
    ],
)
def test_files_that_are_cut_or_lie_about_their_length(data, match):
    refused(data, match)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"dtype": "F999"}, "unknown dtype"),
        ({"dtype": None}, "unknown dtype"),
        ({"dtype": ["F32"]}, "unknown dtype"),
        ({"shape": "8"}, "list of sizes"),
        ({"shape": [-8]}, "list of sizes"),
        ({"shape": [8.0]}, "list of sizes"),
        ({"shape": [True]}, "list of sizes"),
        ({"shape": [2**60]}, "list of sizes"),
        ({"shape": [1] * 9}, "list of sizes"),
        ({"shape": [7]}, "needs 28 bytes"),
        ({"data_offsets": [0]}, "two positions"),
        ({"data_offsets": [0, 1, 2]}, "two positions"),
        ({"data_offsets": [-32, 0]}, "two positions"),
        ({"data_offsets": "ab"}, "two positions"),
        ({"data_offsets": [32, 0]}, "data_offsets give -32"),
        ({"data_offsets": [0, 2**48]}, "data_offsets give"),
        ({"extra": 1}, "exactly dtype, shape and data_offsets"),
    ],
)
def test_entries_that_lie(change, match):
    header, body = table()
    header["layers.0.ffn.up.bias"].update(change)
    refused(file(header, body), match)


def test_too_large_is_said_before_anything_is_read():
    with pytest.raises(TooLarge, match="limit is 10"):
        check(b"\x80\x02" + bytes(100), limit=10)


def empty_tensors(count, value=None):
    empty = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} if value is None else value
    return file({f"t{number}": empty for number in range(count)})


@pytest.mark.parametrize("value", [None, 0, {}])
def test_absurdly_many_tensors_are_refused_before_one_is_looked_at(monkeypatch, value):
    """100,000 empty ones took 13 seconds to refuse. Those that are written as tensors are not even parsed."""
    reader = "loads_strict" if value is None else "_entry"
    monkeypatch.setattr(tensor_file, reader, lambda *_: pytest.fail("it was looked at"))
    refused(empty_tensors(MAX_TENSORS + 2, value), "lists more than 16384 tensors, the most that are read")


def test_as_many_tensors_as_are_read_are_refused_by_their_names_alone(monkeypatch):
    monkeypatch.setattr(weights, "_read", lambda data: pytest.fail("tensors were read"))
    problems = refused(empty_tensors(MAX_TENSORS), "are not those of this configuration", error=Incompatible)
    assert len(problems) == MAX_PROBLEMS + 1
    assert problems[-1].endswith("more.")


def edited(**changes):
    tensors = dict(load_tensors(GOOD))
    tensors.update(changes.pop("set", {}))
    for name in changes.pop("drop", ()):
        del tensors[name]
    return save_tensors(tensors)


def test_all_problems_come_at_once():
    bad = torch.zeros(8)
    bad[:3] = float("nan")
    data = edited(
        set={"layers.0.ffn.up.bias": bad, "layers.0.ffn.down.weight": torch.zeros(8, 3), "head": torch.zeros(2)},
        drop=["layers.1.ffn.norm.bias"],
    )
    problems = refused(data, r"holds 3 values .*\(3 more problems\)")
    assert problems == (
        "Tensor 'layers.0.ffn.up.bias' holds 3 values that are NaN or infinite.",
        "Tensor layers.1.ffn.norm.bias [8] is missing.",
        "Tensor layers.0.ffn.down.weight has shape [8, 3], and [3, 8] is needed.",
        "Tensor 'head' is not expected.",
    )


def test_wrong_keys_and_shapes_alone_are_a_misfit():
    data = edited(drop=["layers.1.ffn.norm.bias", "layers.1.ffn.norm.weight"])
    assert len(refused(data, r"bottleneck adapter .* is missing \(1 more problem\)", Incompatible)) == 2
    other = paper_config("houlsby", bottleneck=3)
    with pytest.raises(Incompatible):
        check_weights(GOOD, other, SHAPE, max_bytes=LIMIT)
    with pytest.raises(Incompatible, match="'t5'"):
        check_weights(GOOD, CONFIG, SHAPE.model_copy(update={"model_type": "t5"}), max_bytes=LIMIT)


def test_dtypes():
    tensors = load_tensors(GOOD)
    mixed = {**tensors, "layers.0.ffn.up.bias": tensors["layers.0.ffn.up.bias"].half()}
    refused(save_tensors(mixed), r"several dtypes \(F16, F32\)")
    wide = write((n, "F64", tuple(t.shape), t.double().numpy().tobytes()) for n, t in tensors.items())
    assert len(refused(wide, "is F64; F32, F16 and BF16 are read")) == 12
    with pytest.raises(InvalidWeights, match="is F64"):
        load_tensors(wide)
    for dtype, name in ((torch.float16, "F16"), (torch.bfloat16, "BF16"), (torch.float32, "F32")):
        assert check(save_tensors({n: t.to(dtype) for n, t in tensors.items()})).dtype == name


def test_a_flood_of_problems_is_cut():
    header = {f"x{i}": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for i in range(5000)}
    problems = refused(file(header), "5011 more problems", Incompatible)
    assert len(problems) == MAX_PROBLEMS + 1
    assert problems[-1] == f"... and {5012 - MAX_PROBLEMS} more."


OURS = (InvalidWeights, Incompatible, TooLarge)


def survives(data):
    """True where the file is taken; anything but our own errors fails the test."""
    try:
        check(data)
    except OURS as problem:
        return not max(map(len, (problem.message, *problem.problems))) < 1000
    return True


@given(st.binary(max_size=200))
def test_random_bytes(data):
    assert not survives(data)
    assert not survives(struct.pack("<Q", len(data)) + data)
    assert not survives(struct.pack("<Q", len(data) + 2) + b"{" + data + b"}")


@given(st.integers(0, len(GOOD) - 1), st.integers(0, 255))
def test_one_changed_byte(position, value):
    data = bytearray(GOOD)
    data[position] = value
    taken = survives(bytes(data))
    (length,) = struct.unpack("<Q", GOOD[:8])
    assert taken or position < 8 + length or value in (0x7F, 0xFF)  # in the body only infinities and NaNs are wrong


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=8,
)


@given(st.data())
def test_mutated_headers(data):
    header, body = table()
    for _ in range(data.draw(st.integers(1, 3))):
        name = data.draw(st.sampled_from([*sorted(header), "new", "__metadata__"]))
        field = data.draw(st.sampled_from(["dtype", "shape", "data_offsets", None]))
        value = data.draw(json_values)
        if field is None or not isinstance(header.get(name), dict):
            header[name] = value
        else:
            header[name][field] = value
    survives(file(header, body))


@given(st.dictionaries(st.text(max_size=12), st.lists(st.integers(0, 3), max_size=3), max_size=5))
def test_what_we_write_safetensors_reads_and_so_do_we(shapes):
    shapes.pop("__metadata__", None)
    data = write((name, "F32", tuple(dims), bytes(4 * math.prod(dims))) for name, dims in shapes.items())
    assert {name: list(entry.shape) for name, entry in parse(data, max_bytes=LIMIT).entries.items()} == shapes
    assert {name: value["shape"] for name, value in safetensors.deserialize(data)} == shapes
