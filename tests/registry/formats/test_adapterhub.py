"""AdapterHub checkpoints against what the library `adapters` computed from them, and everything they may not hold.

The checkpoints, logits and hidden states in tests/fixtures/adapterhub were made by tests/fixtures/make_adapterhub.py.
"""

from __future__ import annotations

import io
import json
import os
import pickle
import re
import shutil
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModel, AutoModelForCausalLM

from registry.adapters import attached, expected_tensors, from_tensors
from registry.adapters.weights import load_tensors
from registry.errors import (
    Incompatible,
    InvalidManifest,
    InvalidParameter,
    InvalidWeights,
    NotFound,
    SoupError,
    TooLarge,
    UnknownMethod,
)
from registry.formats.adapterhub import checkpoint_files, is_checkpoint, read_checkpoint
from registry.formats.adapterhub.options import write_options
from registry.spec import BaseShape, BottleneckConfig, LoraConfig, LoraModule
from tests.repository import REPOSITORY

FIXTURES = REPOSITORY / "tests" / "fixtures" / "adapterhub"
CAUSAL = ("gpt2", "llama", "mistral")
FAMILIES = (*CAUSAL, "bert", "distilbert", "roberta")
ROUNDING = 1e-4
"""Of values up to 10 whose sums another processor added up; an adapter changes logits by 0.5, an encoder's by 0.01."""
KINDS = [
    (family, path.name)
    for family in FAMILIES
    for path in sorted((FIXTURES / family).iterdir())
    if path.is_dir() and path.name != "base"
]
CONFIGS = {
    "seq_bn": BottleneckConfig(structure="pfeiffer", bottleneck=4, activation="relu", input="residual"),
    "double_seq_bn": BottleneckConfig(structure="houlsby", bottleneck=4, activation="swish", trained_norms=False),
    "par_bn": BottleneckConfig(structure="parallel", bottleneck=4, activation="relu", scale=4.0, input="residual"),
    "seq_bn_module": BottleneckConfig(structure="pfeiffer", bottleneck=8, activation="gelu", scale=0.5),
    "ln_before": BottleneckConfig(structure="bapna_firat", bottleneck=4, activation="relu"),
    "ln_before_residual": BottleneckConfig(structure="bapna_firat", bottleneck=4, activation="relu", input="residual"),
    "adapter_plus": BottleneckConfig(structure="pfeiffer", bottleneck=4, activation="relu", input="residual"),
    "scaled_par_bn": BottleneckConfig(structure="parallel", bottleneck=4, activation="relu", input="residual"),
    "channel": BottleneckConfig(structure="houlsby", bottleneck=4, activation="swish", trained_norms=False),
}


ENCODERS_CONFIGS = CONFIGS | {
    "par_bn": CONFIGS["par_bn"].model_copy(update={"input": "module"}),
    "ln_before_after": CONFIGS["ln_before_residual"],
}


def shape_of(family: str) -> BaseShape:
    return BaseShape(
        fingerprint="sha256:" + "0" * 64,
        model_type=family,
        hidden_size=16,
        num_layers=2,
        context=32,
        vocab_size=40,
        kind="causal" if family in CAUSAL else "encoder",
    )


@pytest.fixture(scope="module")
def bases() -> dict[str, Any]:
    return {
        family: (AutoModelForCausalLM if family in CAUSAL else AutoModel).from_pretrained(FIXTURES / family / "base")
        for family in FAMILIES
    }


def library_tensors(folder: Path) -> dict[str, torch.Tensor]:
    """A checkpoint's tensors, read here without the code under test."""
    if (folder / "adapter.safetensors").is_file():
        return load_tensors((folder / "adapter.safetensors").read_bytes())
    return torch.load(folder / "pytorch_adapter.bin", weights_only=True)


def copy(tmp_path: Path, kind: str = "seq_bn", family: str = "gpt2") -> Path:
    return Path(shutil.copytree(FIXTURES / family / kind, tmp_path / "checkpoint"))


def configured(tmp_path: Path, kind: str = "seq_bn", family: str = "gpt2", **options: Any) -> Path:
    """A checkpoint with other options."""
    return about(tmp_path, {}, options, kind=kind, family=family)


def about(
    tmp_path: Path,
    fields: dict[str, Any],
    options: dict[str, Any] | None = None,
    *,
    kind: str = "seq_bn",
    family: str = "gpt2",
) -> Path:
    """A checkpoint with other fields beside its options; None leaves one out."""
    folder = copy(tmp_path, kind, family)
    table = json.loads((folder / "adapter_config.json").read_text()) | fields
    table["config"] |= options or {}
    (folder / "adapter_config.json").write_text(json.dumps({k: v for k, v in table.items() if v is not None}))
    return folder


def weighted(tmp_path: Path, tensors: Any, kind: str = "seq_bn", family: str = "gpt2") -> Path:
    """A checkpoint with other weights."""
    folder = copy(tmp_path, kind, family)
    torch.save(tensors, folder / "pytorch_adapter.bin")
    return folder


def recorded(family: str) -> dict[str, Any]:
    """The tokens that the library was given, and what it computed from them, by kind of adapter."""
    return json.loads((FIXTURES / family / "logits.json").read_text())


# --- reading --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("family", "kind"), KINDS)
def test_what_it_is_and_that_it_computes_what_the_library_did(bases: dict[str, Any], family: str, kind: str) -> None:
    checkpoint = read_checkpoint(FIXTURES / family / kind)
    assert checkpoint.config == (CONFIGS if family in CAUSAL else ENCODERS_CONFIGS)[kind]
    assert (checkpoint.name, checkpoint.model_type, checkpoint.model_name) == (kind, family, "base")
    assert checkpoint.version == "adapters.1.3.0"
    assert checkpoint.ignored_files == (
        ("head_config.json", "pytorch_model_head.bin") if (family, kind) == ("gpt2", "seq_bn") else ()
    )
    adapter = from_tensors(checkpoint.config, shape_of(family), checkpoint.tensors)
    with attached(bases[family], adapter), torch.no_grad():
        logits = bases[family](torch.tensor(recorded(family)["tokens"]))[0]
    expected = torch.tensor(recorded(family)["logits"][kind])
    torch.testing.assert_close(logits, expected, atol=ROUNDING, rtol=0)
    assert (expected - torch.tensor(recorded(family)["logits"]["base"])).abs().max() > 0.01


def test_the_width_is_that_of_the_tensors(tmp_path: Path) -> None:
    assert read_checkpoint(configured(tmp_path, reduction_factor={"default": 16, "1": 2})).config.bottleneck == 4


def test_a_model_saved_without_its_head_has_no_prefix(tmp_path: Path) -> None:
    bare = weighted(tmp_path, {name.removeprefix("transformer."): t for name, t in SEQ_BN.items()})
    with_prefix = read_checkpoint(FIXTURES / "gpt2/seq_bn").tensors
    assert all(torch.equal(t, with_prefix[name]) for name, t in read_checkpoint(bare).tensors.items())


def test_names_with_the_prefix_of_a_head_model_are_read(tmp_path: Path) -> None:
    """Names in checkpoints of BertForSequenceClassification have `bert.` in front."""
    source = FIXTURES / "bert" / "double_seq_bn"
    tensors = library_tensors(source)
    headed = weighted(tmp_path, {f"bert.{name}": t for name, t in tensors.items()}, "double_seq_bn", "bert")
    checkpoint = read_checkpoint(source)
    assert read_checkpoint(headed).tensors.keys() == checkpoint.tensors.keys()
    files = checkpoint_files(checkpoint.config, checkpoint.tensors, name="double_seq_bn", model_type="bert")
    assert set(library_tensors(written(tmp_path / "ours", files))) == {f"bert.{name}" for name in tensors}


def test_safetensors_come_first(tmp_path: Path) -> None:
    folder = copy(tmp_path, "double_seq_bn")
    (folder / "pytorch_adapter.bin").write_bytes(b"never read")
    assert read_checkpoint(folder).config == CONFIGS["double_seq_bn"]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_stays(tmp_path: Path, dtype: torch.dtype) -> None:
    tensors = {name: t.to(dtype) for name, t in library_tensors(FIXTURES / "gpt2/scaled_par_bn").items()}
    read_tensors = read_checkpoint(weighted(tmp_path, tensors, "scaled_par_bn")).tensors
    assert {t.dtype for t in read_tensors.values()} == {dtype}


def test_files_of_the_years_before_zip_archives(tmp_path: Path) -> None:
    folder = copy(tmp_path)
    (folder / "pytorch_adapter.bin").write_bytes(saved(SEQ_BN, zipped=False))
    assert not zipfile.is_zipfile(folder / "pytorch_adapter.bin")
    assert read_checkpoint(folder).config == CONFIGS["seq_bn"]


def test_options_of_training_change_nothing(tmp_path: Path) -> None:
    folder = configured(
        tmp_path, dropout=0.3, init_weights="mam_adapter", init_weights_seed=3, leave_out=[], something_new=None
    )
    assert read_checkpoint(folder).config == CONFIGS["seq_bn"]


@pytest.mark.parametrize(
    ("version", "name", "activation"),
    [
        (None, "gelu_orig", "gelu"),
        (None, "swish", "swish"),
        (None, "ReLU", "relu"),
        ("adapters.1.3.0", "gelu", "gelu"),
    ],
)
def test_files_without_a_version_use_the_old_names(
    tmp_path: Path, version: str | None, name: str, activation: str
) -> None:
    folder = about(tmp_path, {"version": version}, {"non_linearity": name})
    assert read_checkpoint(folder).config.activation == activation


def test_gelu_meant_another_function_once(tmp_path: Path) -> None:
    with pytest.raises(UnknownMethod, match="gelu_new"):
        read_checkpoint(about(tmp_path, {"version": None}, {"non_linearity": "gelu"}))


def test_whether_a_folder_is_one(tmp_path: Path) -> None:
    assert is_checkpoint(FIXTURES / "gpt2/seq_bn")
    assert is_checkpoint(FIXTURES / "llama/par_bn")
    assert not is_checkpoint(FIXTURES / "gpt2/base")
    assert not is_checkpoint(tmp_path)


# --- options without counterpart ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"ln_after": True}, "'ln_after'"),
        ({"use_gating": True}, "'use_gating'"),
        ({"phm_layer": True}, "'phm_layer'"),
        ({"inv_adapter": "nice"}, "'inv_adapter'"),
        ({"invertible_adapter": {"block_type": "nice", "reduction_factor": 2}}, "'invertible_adapter'"),
        ({"cross_adapter": True}, "'cross_adapter'"),
        ({"leave_out": [0]}, "'leave_out'"),
        ({"mh_adapter": True}, "'original_ln_before'"),
        ({"mh_adapter": True, "original_ln_before": False, "ln_before": True}, "'ln_before'"),
        ({"mh_adapter": True, "output_adapter": False}, "'output_adapter'"),
        ({"output_adapter": False}, "'output_adapter'"),
        ({"original_ln_before": False, "original_ln_after": False}, "original_ln_after=False"),
        ({"original_ln_after": False}, "residual_before_ln=True"),
        ({"residual_before_ln": False}, "residual_before_ln=False"),
        ({"residual_before_ln": "post_add"}, "post_add"),
        ({"is_parallel": True, "mh_adapter": True}, "'mh_adapter'"),
        ({"is_parallel": True, "ln_before": True}, "'ln_before'"),
        ({"is_parallel": True, "original_ln_after": False}, "'original_ln_after'"),
        ({"non_linearity": "gelu_new"}, "'gelu_new'"),
        ({"non_linearity": "leakyrelu"}, "'leakyrelu'"),
        ({"non_linearity": None}, "'non_linearity'"),
        ({"scaling": "odd"}, "'scaling'"),
        ({"scaling": True}, "'scaling'"),
        ({"scaling": 10**400}, "'scaling'"),
        ({"mh_adapter": "yes"}, "'mh_adapter'"),
        ({"another": 3}, "'another'"),
        ({"architecture": "lora", "r": 8}, "'lora'"),
        ({"architecture": "prefix_tuning"}, "'prefix_tuning'"),
        ({"architecture": "union"}, "'union'"),
    ],
)
def test_options_without_counterpart_are_refused_by_name(tmp_path: Path, options: dict[str, Any], named: str) -> None:
    with pytest.raises(UnknownMethod, match=re.escape(named)):
        read_checkpoint(configured(tmp_path, **options))


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("seq_bn", {"original_ln_after": False, "residual_before_ln": False}),
        ("seq_bn", {"original_ln_after": False}),
        ("seq_bn", {"residual_before_ln": False}),
        ("seq_bn", {"residual_before_ln": "post_add"}),
        ("seq_bn", {"original_ln_before": False, "original_ln_after": False}),
        ("ln_before", {"original_ln_before": True}),
        ("double_seq_bn", {"original_ln_before": True}),
        ("par_bn", {"original_ln_after": False}),
    ],
)
def test_options_without_counterpart_are_refused_of_encoders_too(
    tmp_path: Path, kind: str, options: dict[str, Any]
) -> None:
    with pytest.raises(UnknownMethod, match="|".join(options)):
        read_checkpoint(configured(tmp_path, kind, "bert", **options))


def test_options_without_counterpart_are_told_all_at_once(tmp_path: Path) -> None:
    with pytest.raises(UnknownMethod, match="3 more problems") as caught:
        read_checkpoint(configured(tmp_path, ln_after=True, use_gating=True, non_linearity="tanh", another=1))
    problems = " ".join(caught.value.problems)
    assert all(name in problems for name in ("'ln_after'", "'use_gating'", "'tanh'", "'another'"))


@pytest.mark.parametrize("family", ["electra", "xlm-roberta", "t5", "../../x"])
def test_other_families_are_refused(tmp_path: Path, family: str) -> None:
    with pytest.raises(UnknownMethod, match="gpt2, llama, mistral") as caught:
        read_checkpoint(about(tmp_path, {"model_type": family}))
    assert family in caught.value.message


@pytest.mark.parametrize(
    ("kind", "file", "data", "error", "sentence"),
    [
        ("seq_bn", "adapter_interface.json", b"{}", UnknownMethod, r"adapter_interface\.json"),
        (
            "double_seq_bn",
            "adapter.safetensors",
            (FIXTURES / "gpt2/seq_bn/pytorch_adapter.bin").read_bytes(),
            InvalidWeights,
            r"torch\.save",
        ),
    ],
)
def test_files_beside_a_checkpoint_that_it_cannot_have(
    tmp_path: Path, kind: str, file: str, data: bytes, error: type[SoupError], sentence: str
) -> None:
    """Another way to place adapters is named, and a safetensors file is read strictly."""
    folder = copy(tmp_path, kind)
    (folder / file).write_bytes(data)
    with pytest.raises(error, match=sentence):
        read_checkpoint(folder)


# --- broken folders -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("missing", "sentence"),
    [
        ("pytorch_adapter.bin", r"pytorch_model_head\.bin are no adapter"),
        ("adapter_config.json", r"no adapter_config\.json"),
    ],
)
def test_a_folder_without_an_adapter(tmp_path: Path, missing: str, sentence: str) -> None:
    folder = copy(tmp_path)
    (folder / missing).unlink()
    assert is_checkpoint(folder)
    with pytest.raises(NotFound, match=sentence):
        read_checkpoint(folder)


def test_what_is_no_folder_of_an_adapter(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="not a directory"):
        read_checkpoint(tmp_path / "none")
    (tmp_path / "adapter_fusion_config.json").write_text("{}")
    with pytest.raises(NotFound, match=r"adapter_fusion_config\.json is no adapter"):
        read_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("[]", InvalidManifest),
        ("{", InvalidManifest),
        ('{"name": "a", "name": "b"}', InvalidManifest),
        ('{"config": NaN}', InvalidManifest),
        ('{"config": "pfeiffer"}', InvalidManifest),
        ('{"config": []}', InvalidManifest),
        ("[" * 100_000, InvalidManifest),
        ("\x00", InvalidManifest),
        (" " * (2**20 + 1), TooLarge),
    ],
)
def test_configurations_that_are_none(tmp_path: Path, text: str, error: type[SoupError]) -> None:
    folder = copy(tmp_path)
    (folder / "adapter_config.json").write_text(text)
    with pytest.raises(error, match="1048577" if error is TooLarge else None):
        read_checkpoint(folder)


@pytest.mark.parametrize(
    "fields",
    [
        {"name": None},
        {"name": "a.b"},
        {"name": ""},
        {"name": 3},
        {"name": "a/../b"},
        {"hidden_size": None},
        {"hidden_size": 0},
        {"hidden_size": True},
        {"hidden_size": "16"},
        {"hidden_size": 10**12},
        {"model_type": None},
        {"model_type": ["gpt2"]},
    ],
)
def test_fields_that_are_wrong(tmp_path: Path, fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidManifest, match=next(iter(fields))):
        read_checkpoint(about(tmp_path, fields))


RAN = Path(tempfile.gettempdir()) / "a-hostile-pickle-ran"


class Bomb:
    """Unpickled, it would run a command."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {RAN}",)


def saved(value: Any, *, zipped: bool = True) -> bytes:
    """The file that torch makes of a value."""
    file = io.BytesIO()
    torch.save(value, file, _use_new_zipfile_serialization=zipped)
    return file.getvalue()


def archive(data: bytes) -> bytes:
    """A compressed zip archive like torch's, which does not compress."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("archive/data.pkl", data)
    return file.getvalue()


SEQ_BN = library_tensors(FIXTURES / "gpt2/seq_bn")
DOWN = "transformer.h.1.output_adapters.adapters.{}.adapter_down.0.weight"


# --- hostile weights ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        *[
            (saved(SEQ_BN | {"more": Bomb()}, zipped=zipped), r"'(posix|nt)\.system'.*could run code")
            for zipped in (True, False)
        ],
        (pickle.dumps(Bomb()), None),
        (saved(torch.nn.Linear(2, 2)), "could run code"),
        (archive(b"\x00" * 10**6), "unpacks to 1000000"),
        (saved(SEQ_BN | {DOWN.format("seq_bn"): torch.zeros(1).expand(10**6, 10**6)}), "claim"),
        *[(data, None) for data in (b"", b"PK\x03\x04", b"PK" + b"\x00" * 100, b"\x80\x02.", b"text", b"\x80\x04].")],
        *[(saved(value), None) for value in (3, [torch.zeros(1)], {}, {1: torch.zeros(1)}, {"a": 3}, None)],
        (saved({"a": torch.eye(3).to_sparse()}), None),
    ],
)
def test_what_is_no_file_of_a_table_of_tensors_is_refused_and_runs_nothing(
    tmp_path: Path, data: bytes, sentence: str | None
) -> None:
    folder = copy(tmp_path)
    (folder / "pytorch_adapter.bin").write_bytes(data)
    with pytest.raises(InvalidWeights, match=sentence):
        read_checkpoint(folder)
    assert not RAN.exists()


def test_every_cut_is_noticed(tmp_path: Path) -> None:
    folder = copy(tmp_path)
    data = (folder / "pytorch_adapter.bin").read_bytes()
    for end in range(0, len(data), 397):
        (folder / "pytorch_adapter.bin").write_bytes(data[:end])
        with pytest.raises(InvalidWeights):
            read_checkpoint(folder)


@given(position=st.integers(0, 5116), value=st.integers(0, 255))
def test_any_other_byte_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, position: int, value: int) -> None:
    folder = copy(tmp_path_factory.mktemp("flip"))
    data = bytearray((folder / "pytorch_adapter.bin").read_bytes())
    data[position % len(data)] = value
    (folder / "pytorch_adapter.bin").write_bytes(data)
    try:
        read_checkpoint(folder)
    except SoupError as error:
        assert isinstance(error, InvalidWeights)  # noqa: PT017


WRONG: dict[str, tuple[dict[str, torch.Tensor | None], str]] = {
    "a missing tensor": (
        {DOWN.format("seq_bn").replace("weight", "bias"): None},
        r"^Tensor 1\.output_adapters\.adapter_down\.0\.bias \[4\] is missing\.$",
    ),
    "a tensor too many": (
        {"transformer.invertible_adapters.seq_bn.F.0.weight": torch.zeros(2)},
        "invertible_adapters",
    ),
    "a tensor with and without prefix": (
        {DOWN.removeprefix("transformer.").format("seq_bn"): torch.zeros(4, 16)},
        "not expected",
    ),
    "several widths": (
        {DOWN.format("seq_bn"): torch.zeros(8, 16)},
        r"widths \(4 in 0.output_adapters.*8 in 1.output_adapters",
    ),
    "a width for each layer": (
        {DOWN.replace("h.1", f"h.{i}").format("seq_bn"): torch.zeros(i + 1, 16) for i in range(500)},
        "^(?=.{,400}$).*496 more",
    ),
    "no width": (
        {DOWN.replace("h.1", f"h.{i}").format("seq_bn"): torch.zeros(0, 16) for i in range(2)},
        "0 wide",
    ),
    "a missing layer": (
        {name: None for name in SEQ_BN if ".h.0." in name},
        r"(is missing\.[^$]*){4}",
    ),
    "not a number": (
        {DOWN.format("seq_bn"): torch.full((4, 16), float("nan"))},
        "64 values that are NaN",
    ),
    **{
        str(dtype): ({DOWN.format("seq_bn"): torch.zeros(4, 16, dtype=dtype)}, f"{dtype}(.|\n)*several dtypes")
        for dtype in (torch.float64, torch.int8, torch.complex64)
    },
    **{
        f"a layer named {name!r}": ({name: torch.zeros(1)}, "")
        for name in (
            "",
            "5",
            "5x.y",
            "²",
            "99999999999",
            "99999999999.output_adapters.x",
            "9999.output_adapters.x",
            "9999",
            DOWN.replace("h.1", "h.9999").format("seq_bn"),
        )
    },
}


# --- wrong tensors --------------------------------------------------------------------------------


def refused(folder: Path) -> str:
    """The message and all problems."""
    with pytest.raises(InvalidWeights) as caught:
        read_checkpoint(folder)
    assert len(caught.value.problems) <= 101
    return "\n".join([caught.value.message, *caught.value.problems])


@pytest.mark.parametrize(("changes", "sentence"), WRONG.values(), ids=WRONG)
def test_tensors_that_do_not_fit(tmp_path: Path, changes: dict[str, torch.Tensor | None], sentence: str) -> None:
    tensors = SEQ_BN | changes
    folder = weighted(tmp_path, {name: t for name, t in tensors.items() if t is not None})
    assert re.search(sentence, refused(folder), re.MULTILINE)


@pytest.mark.parametrize(
    ("fields", "options", "sentence"),
    [
        ({"hidden_size": 32}, {}, r"shape \[4, 16\], and \[4, 32\]"),
        ({"name": "other"}, {}, r"adapters\.other\.adapter_down.*adapters\.seq_bn\."),
        ({"model_type": "llama"}, {}, r"model\.layers\.0"),
        ({"model_type": "bert"}, {}, r"named like bert\.encoder\.layer\.0\.output\.adapters\.seq_bn"),
        ({}, {"scaling": "learned"}, r"0\.output_adapters\.scaling \[1\] is missing"),
    ],
)
def test_tensors_of_something_else(
    tmp_path: Path, fields: dict[str, Any], options: dict[str, Any], sentence: str
) -> None:
    assert re.search(sentence, refused(about(tmp_path, fields, options)))


def test_two_norms_where_there_is_one(tmp_path: Path) -> None:
    tensors = library_tensors(FIXTURES / "gpt2/ln_before") | {DOWN.format("ln_before"): torch.full((16,), 2.0)}
    assert "second copy" in refused(weighted(tmp_path, tensors, "ln_before"))


def test_a_scaling_beyond_the_dtype(tmp_path: Path) -> None:
    tensors = {name: 9 * t.half() for name, t in library_tensors(FIXTURES / "gpt2/scaled_par_bn").items()}
    name = "transformer.h.1.output_adapters.adapters.scaled_par_bn.scaling"
    folder = weighted(tmp_path, tensors | {name: torch.full((1,), 6e4, dtype=torch.float16)}, "scaled_par_bn")
    assert re.search(r"takes layers\.1\.ffn\.up\.\w+ beyond float16", refused(folder))


def written(folder: Path, files: dict[str, bytes]) -> Path:
    folder.mkdir(exist_ok=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return folder


# --- writing --------------------------------------------------------------------------------------


@pytest.mark.parametrize("safetensors", [True, False])
@pytest.mark.parametrize(("family", "kind"), KINDS)
def test_what_was_read_is_written_as_the_library_wrote_it(
    tmp_path: Path, family: str, kind: str, safetensors: bool
) -> None:
    source = FIXTURES / family / kind
    checkpoint = read_checkpoint(source)
    files = checkpoint_files(
        checkpoint.config,
        checkpoint.tensors,
        name=kind,
        model_type=family,
        model_name="base",
        safetensors=safetensors,
    )
    folder = written(tmp_path / "back", files)
    back = read_checkpoint(folder)
    assert (back.config, back.tensors.keys()) == (checkpoint.config, checkpoint.tensors.keys())
    assert all(torch.equal(tensor, checkpoint.tensors[name]) for name, tensor in back.tensors.items())
    if family not in CAUSAL or kind in {"scaled_par_bn", "channel"}:  # encoders are saved with and without the prefix
        return
    theirs, ours = library_tensors(source), library_tensors(folder)
    assert set(ours) == set(theirs)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    table, library_table = (json.loads((f / "adapter_config.json").read_text()) for f in (folder, source))
    options, library_options = table.pop("config"), library_table.pop("config")
    assert table == library_table
    if kind == "adapter_plus":  # two ways to say the same
        library_options |= {"original_ln_after": True, "residual_before_ln": True}
    assert options == {name: library_options[name] for name in options}


@given(
    structure=st.sampled_from(["houlsby", "pfeiffer", "bapna_firat", "parallel"]),
    residual=st.booleans(),
    activation=st.sampled_from(["relu", "gelu", "swish"]),
    scale=st.floats(-8, 8),
    width=st.integers(1, 9),
    hidden=st.integers(1, 9),
    layers=st.integers(1, 3),
    dtype=st.sampled_from([torch.float32, torch.float16, torch.bfloat16]),
    family=st.sampled_from(CAUSAL),
    safetensors=st.booleans(),
)
def test_there_and_back_is_the_same(
    tmp_path_factory: pytest.TempPathFactory,
    structure: Any,
    residual: bool,
    activation: Any,
    scale: float,
    width: int,
    hidden: int,
    layers: int,
    dtype: torch.dtype,
    family: str,
    safetensors: bool,
) -> None:
    config = BottleneckConfig(
        structure=structure,
        bottleneck=width,
        activation=activation,
        scale=scale,
        input="residual" if structure == "parallel" or (residual and structure != "houlsby") else "module",
        trained_norms=structure != "houlsby",
    )
    shape = shape_of(family).model_copy(update={"hidden_size": hidden, "num_layers": layers})
    generator = torch.Generator().manual_seed(width + 10 * hidden)
    tensors = {
        name: torch.randn(s, generator=generator).to(dtype) for name, s in expected_tensors(config, shape).items()
    }
    files = checkpoint_files(config, tensors, name="x", model_type=family, safetensors=safetensors)
    reread = read_checkpoint(written(tmp_path_factory.mktemp("law") / "c", files))
    assert (reread.config, set(reread.tensors)) == (config, set(tensors))
    assert all(
        torch.equal(reread.tensors[name], t) and reread.tensors[name].dtype == dtype for name, t in tensors.items()
    )


@given(hidden=st.integers(1, 5000), width=st.integers(1, 5000))
def test_the_reduction_factor_gives_the_width(hidden: int, width: int) -> None:
    config = CONFIGS["seq_bn"].model_copy(update={"bottleneck": width})
    factor = write_options(config, hidden_size=hidden)["reduction_factor"]
    assert int(hidden // factor) == width  # adapters/methods/bottleneck.py, add_adapter


@pytest.mark.parametrize(
    ("family", "change", "reason"),
    [
        ("gpt2", {"structure": "parallel"}, "normed argument"),
        ("gpt2", {"structure": "houlsby"}, "trained LayerNorms"),
        ("gpt2", {"structure": "bapna_firat", "layer_norm_eps": 1e-6}, "epsilon 1e-05"),
        ("bert", {"structure": "houlsby"}, "trained LayerNorms"),
        ("bert", {"structure": "parallel", "input": "residual"}, "input 'module'"),
    ],
)
def test_what_the_library_cannot_express(family: str, change: dict[str, Any], reason: str) -> None:
    config = BottleneckConfig(**{"bottleneck": 4, "activation": "relu", **change})
    tensors = {name: torch.zeros(s) for name, s in expected_tensors(config, shape_of("gpt2")).items()}
    with pytest.raises(Incompatible, match=reason):
        checkpoint_files(config, tensors, name="a", model_type=family)


def test_what_is_not_written() -> None:
    config, tensors = CONFIGS["seq_bn"], read_checkpoint(FIXTURES / "gpt2/seq_bn").tensors
    lora = LoraConfig.of({"transformer.h.0.attn.c_attn": LoraModule(2, 4.0)})
    wider = config.model_copy(update={"bottleneck": 5})
    odd = "not those of the adapter's configuration"
    for changes, error, sentence in (
        ({"config": lora}, UnknownMethod, "'lora'"),
        ({"name": "a.b"}, InvalidParameter, r"'a\.b'"),
        ({"model_type": "qwen2"}, UnknownMethod, "'qwen2'"),
        ({"config": wider}, Incompatible, r"\[4, 16\]"),
        ({"tensors": {}}, Incompatible, odd),
        ({"tensors": {**tensors, "more": torch.zeros(1)}}, Incompatible, odd),
        ({"tensors": dict(list(tensors.items())[1:])}, Incompatible, odd),
        *[
            ({"tensors": {name: torch.zeros(4, 2)}}, Incompatible, None)  # layers beyond any model
            for name in ("layers.999999999.ffn.up.weight", "", "5x")
        ],
    ):
        written = {"config": config, "tensors": tensors, "name": "a", "model_type": "gpt2", **changes}
        with pytest.raises(error, match=sentence):
            checkpoint_files(written.pop("config"), written.pop("tensors"), **written)
