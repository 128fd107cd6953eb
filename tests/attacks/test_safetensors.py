"""Weights made to harm, pushed over HTTP: each is refused in one sentence before any library reads it."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import struct
import tarfile
import zipfile
from collections.abc import Callable
from typing import Any

import pytest
import torch

from registry.adapters.weights import load_tensors, save_tensors
from registry.tensor_file import MAX_HEADER_BYTES, write
from tests.attacks.attack import Attack, each
from tests.attacks.target import WEIGHTS, Target

LAST = "layers.0.ffn.up.bias"
EMPTY = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
ONE = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}
Make = Callable[[bytes], bytes]
"""The bytes of an attack, from those of a good file."""


class Boom:
    """An object whose pickle calls a function."""

    def __reduce__(self) -> Any:
        return (pytest.fail, ("the pickle was opened",))


def file(header: bytes | dict[str, Any], body: bytes = b"") -> bytes:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(raw)) + raw + body


def table(good: bytes) -> tuple[dict[str, Any], bytes]:
    (length,) = struct.unpack("<Q", good[:8])
    return json.loads(good[8 : 8 + length]), good[8 + length :]


def changed(**fields: Any) -> Make:
    """One entry of the header with other fields."""

    def make(good: bytes) -> bytes:
        header, body = table(good)
        header[LAST] |= fields
        return file(header, body)

    return make


def shifted(number: int | None, by: int) -> Make:
    """The offsets of one tensor, or of all, moved by so many bytes."""

    def make(good: bytes) -> bytes:
        header, body = table(good)
        names = sorted(header, key=lambda name: header[name]["data_offsets"])
        for name in names if number is None else [names[number]]:
            header[name]["data_offsets"] = [position + by for position in header[name]["data_offsets"]]
        return file(header, (bytes(by) if number is None else b"") + body)

    return make


def alias(good: bytes) -> bytes:
    """Two tensors of one shape over the same bytes."""
    header, body = table(good)
    header["layers.1.ffn.up.bias"] = dict(header[LAST])
    return file(header, body)


def poisoned(value: float, dtype: torch.dtype) -> Make:
    def make(good: bytes) -> bytes:
        tensors = {name: tensor.to(dtype) for name, tensor in load_tensors(good).items()}
        tensors["layers.1.ffn.up.weight"][2, 1] = value
        return save_tensors(tensors)

    return make


def edited(**tensors: torch.Tensor | None) -> Make:
    """Other tensors in the place of some; None leaves one out. A name's dots are written as underscores twice."""

    def make(good: bytes) -> bytes:
        tensors_by_name = dict(load_tensors(good)) | {
            name.replace("__", "."): tensor for name, tensor in tensors.items()
        }
        return save_tensors({name: tensor for name, tensor in tensors_by_name.items() if tensor is not None})

    return make


def as_dtype(good: bytes) -> bytes:
    tensors = load_tensors(good)
    return write(
        (name, "F64", tuple(tensor.shape), tensor.double().numpy().tobytes()) for name, tensor in tensors.items()
    )


def two_dtypes(good: bytes) -> bytes:
    tensors = dict(load_tensors(good))
    return save_tensors({**tensors, LAST: tensors[LAST].half()})


def saved_by_torch(new: bool) -> bytes:
    buffer = io.BytesIO()
    torch.save({"w": torch.zeros(2)}, buffer, _use_new_zipfile_serialization=new)
    return buffer.getvalue()


def zipped() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps(Boom()))
    return buffer.getvalue()


def tarred() -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("../../admin.key"))
    return buffer.getvalue()


def weights(name: str, tries: str, says: str, data: bytes | Make, code: str = "invalid_weights") -> Attack:
    """A push of weights, that is refused."""

    def strike(target: Target) -> Any:
        return target.push_weights(data if isinstance(data, bytes) else data(target.good))

    return Attack(name, tries, 422, code, says, strike)


def text(name: str, tries: str, says: str, header: bytes) -> Attack:
    """A header that is no clean JSON."""
    return weights(name, tries, says, file(header))


ATTACKS = (
    *(
        weights(
            f"pickle of protocol {number}",
            f"Has a pickle of protocol {number} loaded, which calls a function.",
            "Python pickle; only safetensors",
            pickle.dumps(Boom(), protocol=number),
        )
        for number in range(2, 6)
    ),
    weights(
        "pickle of protocol 0",
        "Has an old pickle, which begins like text, loaded.",
        "announce a header",
        pickle.dumps(Boom(), protocol=0),
    ),
    weights(
        "torch.save",
        "Has a checkpoint of torch loaded, whose pickle may call anything.",
        "zip archive",
        saved_by_torch(new=True),
    ),
    weights(
        "old torch.save",
        "The same in the form that torch wrote before, without an archive.",
        "Python pickle",
        saved_by_torch(new=False),
    ),
    weights("zip with a pickle", "Hides a pickle in an archive as torch names it.", "zip archive", zipped()),
    weights(
        "empty zip",
        "Sends an archive without entries, whose end is its beginning.",
        "empty zip",
        b"PK\x05\x06" + bytes(18),
    ),
    weights("tar that climbs", "Sends an archive with a path out of the folder.", "announce a header", tarred()),
    weights(
        "gzip bomb",
        "Sends 64 KiB of zeros as some bytes, for whoever unpacks them.",
        "gzip",
        gzip.compress(bytes(65_536)),
    ),
    weights("GGUF", "Sends a file of another reader, which has had overflows.", "GGUF", b"GGUF" + bytes(50)),
    weights("HDF5", "Sends a file of another reader, which may name others.", "HDF5", b"\x89HDF\r\n\x1a\n" + bytes(50)),
    weights(
        "NumPy objects",
        "Sends an array of objects, which is a pickle inside.",
        "NumPy",
        b"\x93NUMPY\x01\x00" + bytes(50),
    ),
    weights(
        "web page", "Sends what a proxy answers in the place of a file.", "announce a header", b"<html>not found</html>"
    ),
    *(
        weights(
            f"header of {length} bytes",
            f"Has {length} bytes made room for by a length alone.",
            "beyond the limit",
            struct.pack("<Q", length) + b"{}" + bytes(100),
        )
        for length in (MAX_HEADER_BYTES + 1, 2**31, 2**63, 2**64 - 1)
    ),
    weights(
        "header beyond the file",
        "Announces a header that is longer than the file.",
        "cut off",
        struct.pack("<Q", 100) + b"{}",
    ),
    weights("nothing", "Sends no byte at all.", "too few", b""),
    weights("nine bytes", "Sends less than the shortest file there is.", "too few", bytes(9)),
    weights("half a file", "Sends the first half of a good file.", "cut off", lambda good: good[: len(good) // 2]),
    weights("a byte short", "Leaves the last byte away.", "cut off", lambda good: good[:-1]),
    weights("hidden tail", "Hides bytes behind the last tensor.", "after the last tensor", lambda good: good + b"x"),
    weights("bytes of no tensor", "Hides bytes in a file without tensors.", "6 bytes after", file(b"{}", b"hidden")),
    text("header that is a list", "Has a list read where a table is expected.", "begin with '{'", b"[]"),
    text("header after a space", "Has two readers disagree on where the header begins.", "begin with '{'", b" {}"),
    text("two headers", "Puts a second header behind the first.", "the JSON is broken", b"{}{}"),
    text("header in Latin-1", "Sends a name that is no UTF-8.", "not valid UTF-8 at byte 5", b'{"a":\xff}'),
    text("NaN in the header", "Has NaN read as a number.", "holds NaN", b'{"a":NaN}'),
    text("deep header", "Exhausts the stack of the parser.", "nested too deeply", b'{"a":' + b"[" * 40_000),
    text(
        "number bomb in the header",
        "Has a number of 5,000 digits converted.",
        "too long",
        b'{"a":' + b"9" * 5000 + b"}",
    ),
    text(
        "duplicate tensor",
        "Has two readers see two tensors under one name.",
        "the key 'a' twice",
        b'{"a":' + json.dumps(ONE).encode() + b',"a":' + json.dumps(ONE).encode() + b"}",
    ),
    text(
        "duplicate field", "Gives a tensor two dtypes.", "the key 'dtype' twice", b'{"a":{"dtype":"F32","dtype":"F16"}}'
    ),
    text(
        "duplicate by an escape", "Writes the same name in two spellings.", "the key 'a' twice", b'{"a":1,"\\u0061":2}'
    ),
    text(
        "duplicate metadata",
        "Gives the metadata two values.",
        "the key 'a' twice",
        b'{"__metadata__":{"a":"1","a":"2"}}',
    ),
    text(
        "metadata of numbers",
        "Has a number read as a text of the metadata.",
        "__metadata__",
        b'{"__metadata__":{"a":1}}',
    ),
    text("metadata that is a list", "Has a list read as the metadata.", "__metadata__", b'{"__metadata__":[]}'),
    weights("unknown dtype", "Names a dtype that no reader has.", "unknown dtype", changed(dtype="F999")),
    weights("dtype that is a list", "Has a list looked up as a dtype.", "unknown dtype", changed(dtype=["F32"])),
    weights("negative size", "Names a negative size.", "list of sizes", changed(shape=[-8])),
    weights("size that is a float", "Names a size that is no whole number.", "list of sizes", changed(shape=[8.0])),
    weights("size that is true", "Has a truth value read as the size 1.", "list of sizes", changed(shape=[True])),
    weights(
        "overflowing size",
        "Names a size whose product does not fit into 64 bits.",
        "list of sizes",
        changed(shape=[2**60]),
    ),
    weights(
        "many dimensions", "Names more dimensions than an array may have.", "list of sizes", changed(shape=[1] * 9)
    ),
    weights("shape that lies", "Names a shape that its bytes do not fill.", "data_offsets give", changed(shape=[7])),
    weights("one offset", "Leaves the end of a tensor open.", "two positions", changed(data_offsets=[0])),
    weights(
        "negative offset", "Begins a tensor before the first byte.", "two positions", changed(data_offsets=[-32, 0])
    ),
    weights(
        "offsets that go back", "Ends a tensor before it begins.", "data_offsets give", changed(data_offsets=[32, 0])
    ),
    weights(
        "offset beyond the file", "Reads memory behind the file.", "data_offsets give", changed(data_offsets=[0, 2**48])
    ),
    weights(
        "unknown field of a tensor",
        "Adds a field that another reader may act on.",
        "exactly dtype, shape",
        changed(path="/etc/passwd"),
    ),
    weights("overlapping tensors", "Lets two tensors share some bytes.", "overlaps", shifted(3, -4)),
    weights("tensors over the same bytes", "Lets two tensors be the same bytes.", "overlaps", alias),
    weights("gap between tensors", "Hides bytes between two tensors.", "gap of", shifted(3, 4)),
    weights(
        "gap before the tensors", "Hides bytes before the first tensor.", "gap of 8 bytes before", shifted(None, 8)
    ),
    *(
        weights(
            f"{value} as {dtype}",
            f"Poisons a mixture with {value} among values of {dtype}.",
            "1 values that are NaN or infinite",
            poisoned(float(value), getattr(torch, dtype)),
        )
        for value, dtype in (("nan", "float32"), ("inf", "float16"), ("-inf", "bfloat16"))
    ),
    weights(
        "double precision",
        "Has weights taken that cost twice the memory.",
        "is F64; F32, F16 and BF16 are read",
        as_dtype,
    ),
    weights(
        "two dtypes at once", "Mixes dtypes, which every average would have to guess.", "several dtypes", two_dtypes
    ),
    weights(
        "tensor that is missing",
        "Leaves a tensor out, so that it stays whatever it was.",
        "is missing",
        edited(layers__0__ffn__up__bias=None),
        code="incompatible",
    ),
    weights(
        "tensor that is not expected",
        "Adds a tensor, for whoever loads all of a file.",
        "'head' is not expected",
        edited(head=torch.zeros(2)),
        code="incompatible",
    ),
    weights(
        "wrong shape",
        "Puts a transposed matrix in the place of one.",
        "is needed",
        edited(layers__0__ffn__down__weight=torch.zeros(32, 4)),
        code="incompatible",
    ),
    weights(
        "tensors of another structure", "Says that no tensor is there.", "is missing", file(b"{}"), code="incompatible"
    ),
    weights(
        "500 unknown tensors",
        "Has a refusal of 500 problems written.",
        "more.",
        file({f"x{number}": EMPTY for number in range(500)}),
        code="incompatible",
    ),
    weights(
        "name of 30,000 letters",
        "Has a name of 30,000 letters written into a refusal.",
        "nnn' has unknown dtype",
        file({"n" * 30_000: {**EMPTY, "dtype": "bad"}}),
    ),
    Attack(
        "100,000 tensors",
        "Has a table of 100,000 empty tensors looked through, as a blob that was uploaded.",
        422,
        "invalid_weights",
        "lists more than 16384 tensors",
        lambda target: target.push(files={WEIGHTS: {"digest": target.prepared}}),
        lambda target: target.upload(file({f"t{number}": EMPTY for number in range(100_000)})),
    ),
)


@each(ATTACKS)
def test_it_is_refused(target: Target, attack: Attack) -> None:
    target.withstands(attack)
