"""Files of weights: what each digest depends on, and files made to harm, refused before any library reads them."""

from __future__ import annotations

import json
import math
import struct

import pytest
import safetensors
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st

from registry import tensor_file
from registry.adapters import create, expected_tensors, paper_config, weights
from registry.adapters.weights import adapter_digest, check_weights, init_hash, load_tensors, save_tensors, scale_output
from registry.errors import Incompatible, InvalidWeights, TooLarge
from registry.spec import BaseShape, BottleneckConfig, LoraConfig, LoraModule
from registry.tensor_file import MAX_HEADER_BYTES, MAX_PROBLEMS, MAX_TENSORS, canonical_order, parse, write

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
    wrong_config = paper_config("houlsby", bottleneck=3)
    with pytest.raises(Incompatible):
        check_weights(GOOD, wrong_config, SHAPE, max_bytes=LIMIT)
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
    assert (len(problems), problems[-1]) == (MAX_PROBLEMS + 1, f"... and {5012 - MAX_PROBLEMS} more.")


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
    accepted = survives(bytes(data))
    (length,) = struct.unpack("<Q", GOOD[:8])
    assert accepted or position < 8 + length or value in (0x7F, 0xFF)  # in the body only infinities and NaNs are wrong


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


# --- bytes and digests ----------------------------------------------------------------------------


BASE = "sha256:" + "0" * 64
DEEP = BaseShape(fingerprint=BASE, model_type="gpt2", hidden_size=8, num_layers=11, context=64, vocab_size=300)
TENSORS = {name: tensor.detach() for name, tensor in create(CONFIG, DEEP, seed=0).state_dict().items()}
DIGEST = adapter_digest(BASE, CONFIG, TENSORS)


def bits(tensor):
    return tensor.contiguous().view(torch.uint8)


@given(st.data())
def test_round_trip_is_bit_exact(data):
    dtype = data.draw(st.sampled_from([torch.float32, torch.float16, torch.bfloat16]))
    size = {torch.float32: 4}.get(dtype, 2)
    shape = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=3))
    raw = data.draw(st.binary(min_size=size * torch.Size(shape).numel(), max_size=size * torch.Size(shape).numel()))
    tensor = torch.frombuffer(bytearray(raw), dtype=dtype).reshape(shape)  # any bits: NaN payloads, -0, subnormals
    stored = save_tensors({"layers.0.x": tensor})
    back = load_tensors(stored)["layers.0.x"]
    assert back.dtype == dtype
    assert torch.equal(bits(back), bits(tensor))
    assert torch.equal(bits(safetensors.torch.load(stored)["layers.0.x"]), bits(tensor))


def test_layout_and_metadata_change_the_file_and_not_the_digest():
    ours = save_tensors(TENSORS)
    theirs = safetensors.torch.save(TENSORS, metadata={"made": "elsewhere"})
    assert ours != theirs
    for data in (ours, theirs, save_tensors(TENSORS, metadata={"x": "y"})):
        check_weights(data, CONFIG, DEEP, max_bytes=10**6)
        assert adapter_digest(BASE, CONFIG, load_tensors(data)) == DIGEST
    assert list(load_tensors(theirs)) == list(load_tensors(ours)) == canonical_order(TENSORS)


@given(st.sampled_from(sorted(TENSORS)), st.integers(0, 10**6), st.integers(0, 31))
def test_any_flipped_bit_changes_the_digest(name, element, bit):
    changed = {key: tensor.clone() for key, tensor in TENSORS.items()}
    flat = changed[name].view(-1).view(torch.int32)
    flat[element % flat.numel()] ^= -(2**31) if bit == 31 else 1 << bit
    assert adapter_digest(BASE, CONFIG, changed) != DIGEST
    assert init_hash(changed) != init_hash(TENSORS)


def test_the_digest_holds_base_configuration_names_shapes_and_dtype():
    renamed = dict(TENSORS)
    renamed["layers.0.ffn.up.biaz"] = renamed.pop("layers.0.ffn.up.bias")
    turned = {**TENSORS, "layers.0.ffn.up.weight": TENSORS["layers.0.ffn.up.weight"].reshape(3, 8)}
    zero = {name: torch.zeros_like(t) for name, t in TENSORS.items()}
    digests = {
        DIGEST,
        adapter_digest("sha256:" + "1" * 64, CONFIG, TENSORS),
        adapter_digest(BASE, CONFIG.model_copy(update={"scale": 2.0}), TENSORS),
        adapter_digest(BASE, CONFIG.model_copy(update={"activation": "gelu"}), TENSORS),
        adapter_digest(BASE, CONFIG, renamed),
        adapter_digest(BASE, CONFIG, turned),
        adapter_digest(BASE, CONFIG, zero),
        adapter_digest(BASE, CONFIG, {name: t.half() for name, t in zero.items()}),
        adapter_digest(BASE, CONFIG, {name: t.bfloat16() for name, t in zero.items()}),
        init_hash(TENSORS),
    }
    assert len(digests) == 10


def test_init_hash_is_that_of_fp32_values():
    half = {name: tensor.half() for name, tensor in TENSORS.items()}
    assert init_hash(half) == init_hash({name: tensor.float() for name, tensor in half.items()})
    assert init_hash(half) != init_hash(TENSORS)
    assert init_hash(dict(list(TENSORS.items())[1:])) != init_hash(TENSORS)


def test_strides_do_not_matter():
    strided = {name: (t.t().contiguous().t() if t.ndim == 2 else t) for name, t in TENSORS.items()}
    assert adapter_digest(BASE, CONFIG, strided) == DIGEST
    assert save_tensors(strided) == save_tensors(TENSORS)


def test_other_dtypes_are_not_stored():
    with pytest.raises(InvalidWeights, match="int64"):
        adapter_digest(BASE, CONFIG, {"layers.0.x": torch.zeros(2, dtype=torch.int64)})


def test_scaling_the_output_keeps_the_dtype():
    half = {name: t.bfloat16() for name, t in TENSORS.items()}
    assert {t.dtype for t in scale_output(half, CONFIG, 0.3).values()} == {torch.bfloat16}


OTHERWISE = BottleneckConfig(
    structure="bapna_firat", bottleneck=3, activation="swish", scale=2.5, input="residual", layer_norm_eps=1e-6
)
LINEARS = {f"transformer.h.{i}.attn.c_attn": (8, 24) for i in range(11)}
LORA = LoraConfig.of({path: LoraModule(2, 4.0) for path in LINEARS})


@pytest.mark.parametrize(
    ("config", "digest"),
    [
        (paper_config("houlsby", bottleneck=3), "2258805ca3c629d6f017e6895e03626cc0dd6c7921a34c7ed25c6e1a0655bcd4"),
        (paper_config("pfeiffer", bottleneck=3), "dc67678272ab7ba531b16eda8cd672b9b2bc48a40127a4c695475bf91b199969"),
        (paper_config("bapna_firat", bottleneck=3), "8937996d8b6d27198319ee74ef7f43e545e2d17642cf0601158c84ff43e19f59"),
        (paper_config("parallel", bottleneck=3), "10ad4648b91b28b2b747ba811600176949abd712acd8875c193b194e16246b61"),
        (OTHERWISE, "2f3f540ffbed1bffc54802f4e83b066ecddd5e108e025ae46b13bee1c8283fa9"),
        (LORA, "334d14d76c96353cbfc50854b82e04dbf95616d2ca88eeb92934fb6d0ef2d5fc"),
    ],
)
def test_digests_stay_what_they_are(config, digest):
    """Digests of bottlenecks are of the first release: what is in people's recipes and refs may never change."""
    shape = DEEP.model_copy(update={"linears": LINEARS})
    tensors = {name: torch.full(size, 0.5) for name, size in expected_tensors(config, shape).items()}
    assert adapter_digest(BASE, config, tensors) == f"sha256:{digest}"
