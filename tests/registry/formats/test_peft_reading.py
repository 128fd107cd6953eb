"""PEFT configurations: read as PEFT reads them, refused by name, and written so that they are read back the same."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from peft import LoraConfig as LoraFile
from peft.utils.other import get_pattern_key

from registry.errors import InvalidManifest, UnknownMethod
from registry.formats.peft import expressions
from registry.formats.peft import expressions as patterns
from registry.formats.peft.expressions import Pattern, UnsupportedPatternError
from registry.formats.peft.lora import lora_config
from registry.formats.peft.writing import peft_config
from registry.spec import BaseKind, BaseShape, LoraConfig, LoraModule

LAYER = "model.layers.{}.self_attn.{}"
PATHS = [LAYER.format(i, x) for i in (0, 1, 10) for x in ("q_proj", "v_proj")]


def tensors(ranks: dict[str, int], *, sizes: tuple[int, int] = (8, 12)) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {}
    for path, rank in ranks.items():
        shapes[f"base_model.model.{path}.lora_A.weight"] = (rank, sizes[0])
        shapes[f"base_model.model.{path}.lora_B.weight"] = (sizes[1], rank)
    return shapes


def base(linears: Collection[str], *, model_type: str = "llama", kind: BaseKind = "causal") -> BaseShape:
    return BaseShape(
        fingerprint="sha256:" + "0" * 64,
        model_type=model_type,
        hidden_size=8,
        num_layers=12,
        context=64,
        vocab_size=10,
        linears=dict.fromkeys(linears, (8, 12)),
        kind=kind,
    )


def peft_fields(**fields: Any) -> dict[str, Any]:
    return {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj"], **fields}


def refused(
    peft: dict[str, Any], shapes: dict[str, tuple[int, ...]], *words: str, error: type[Exception] = InvalidManifest
) -> None:
    with pytest.raises(error) as caught:
        lora_config(peft, shapes)
    problems = getattr(caught.value, "problems", ())
    assert type(caught.value) is error
    for word in words:
        assert any(word in problem for problem in problems), (word, problems)


ALL_FOUR = tensors(dict.fromkeys(PATHS, 4))


# --- reading --------------------------------------------------------------------------------------


def test_rank_alpha_and_modules() -> None:
    assert lora_config(
        peft_fields(use_rslora=True, lora_dropout=0.1, fan_in_fan_out=True, peft_version="0.21"), ALL_FOUR
    ) == LoraConfig.of(dict.fromkeys(PATHS, LoraModule(4, 8.0)), rslora=True)


def test_what_is_left_out_has_pefts_defaults() -> None:
    assert lora_config({"peft_type": "LORA"}, tensors({PATHS[0]: 8})).modules() == {PATHS[0]: LoraModule(8, 8.0)}


@pytest.mark.parametrize(
    "pattern",
    [
        {"q_proj": 7},
        {"layers.1.self_attn.q_proj": 7, "q_proj": 5},
        {"q_proj": 5, "layers.1.self_attn.q_proj": 7},
        {"^model.layers.0.self_attn.q_proj": 7},
        {"^layers.0.self_attn.q_proj": 7},
        {r"layers\.(0|10)\..*\.(q|v)_proj": 7, "v_proj": 3},
        {r"layers\.\d\.self_attn.v_proj": 7},
        {r".*\.1\..*": 7, "v_proj": 2},
        {"proj": 7},
        {"[qk]_proj": 7, ".*": 5},
        {"self_attn": 7, r"model\.layers\.1\.self_attn\.q_proj$": 6},
    ],
    ids=str,
)
def test_patterns_are_pefts(pattern: dict[str, int]) -> None:
    def of_peft(path: str, default: int) -> int:
        return pattern.get(get_pattern_key(list(pattern), path), default)

    shapes = tensors({path: of_peft(path, 4) for path in PATHS})
    config = lora_config(peft_fields(rank_pattern=pattern, alpha_pattern=pattern), shapes)
    assert config.modules() == {p: LoraModule(of_peft(p, 4), of_peft(p, 8)) for p in sorted(PATHS)}


@pytest.mark.parametrize(
    ("fields", "fits"),
    [
        ({"target_modules": "all-linear"}, True),
        ({"target_modules": None}, True),
        ({"target_modules": PATHS}, True),
        ({"target_modules": ["q_proj"]}, False),
        ({"target_modules": ["proj"]}, False),
        ({"target_modules": r".*\.(q|v)_proj"}, True),
        ({"target_modules": r"(?:.*?(?:self_attn).*?(?:q_proj|v_proj).*?)|(?:layers\.[\d]{1,}\.up)"}, True),
        ({"target_modules": r"model\.layers\.[01]\..*"}, False),
        ({"target_modules": r"(?=not read).*"}, True),
        ({"exclude_modules": ["v_proj"]}, False),
        ({"exclude_modules": r".*v_proj"}, False),
        ({"layers_to_transform": [0, 1, 10]}, True),
        ({"layers_to_transform": [0, 1]}, False),
        ({"layers_to_transform": 0}, False),
        ({"layers_to_transform": [0, 1, 10], "layers_pattern": "layers"}, True),
        ({"layers_to_transform": [0, 1, 10], "layers_pattern": ["h"]}, False),
    ],
    ids=str,
)
def test_tensors_that_the_configuration_does_not_target(fields: dict[str, Any], fits: bool) -> None:
    if fits:
        assert set(lora_config(peft_fields(**fields), ALL_FOUR).modules()) == set(PATHS)
    else:
        refused(peft_fields(**fields), ALL_FOUR, "does not target")


# --- refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fields",
    [
        {"use_dora": True},
        {"bias": "all"},
        {"bias": "lora_only"},
        {"lora_bias": True},
        {"modules_to_save": ["x"]},
        {"layer_replication": [[0, 2]]},
        {"target_parameters": ["x"]},
        {"trainable_token_indices": [1]},
        {"use_qalora": True},
        {"alora_invocation_tokens": [1]},
        {"megatron_config": {"a": 1}},
        {"loftq_config": {"bits": 4}},
        {"corda_config": {"a": 1}},
        {"use_bdlora": {}, "arrow_config": {"a": 1}},
        {"init_lora_weights": "pissa"},
        {"init_lora_weights": "pissa_niter_16"},
        {"init_lora_weights": "olora"},
        {"init_lora_weights": "loftq"},
        {"init_lora_weights": "corda"},
        {"init_lora_weights": "lora_ga"},
        {"init_lora_weights": 1},
        {"task_type": "SEQ_CLS"},
        {"some_new_field": 3},
        {"ensure_weight_tying": True},
    ],
    ids=str,
)
def test_options_are_refused_by_name(fields: dict[str, Any]) -> None:
    refused(peft_fields(**fields), ALL_FOUR, [field for field in fields if fields[field]][-1], error=UnknownMethod)


def test_other_methods_are_refused_by_name() -> None:
    refused({"peft_type": "IA3"}, ALL_FOUR, "peft_type 'IA3'", error=UnknownMethod)
    refused({}, ALL_FOUR, "peft_type is missing", error=UnknownMethod)


def test_empty_fields_of_other_versions_do_not_matter() -> None:
    nothing: dict[str, Any] = {
        "new_one": None,
        "new_two": False,
        "new_three": [],
        "new_four": {},
        "eva_config": {"rho": 2.0},
    }
    assert lora_config(peft_fields(**nothing, init_lora_weights="eva"), ALL_FOUR)


def test_everything_refused_is_told_at_once() -> None:
    shapes = {**tensors({PATHS[0]: 6}), f"base_model.model.{PATHS[1]}.lora_A.weight": (4, 8)}
    peft = peft_fields(use_dora=True, bias="all", rank_pattern={"(?=x)": 2})
    ranks = "rank 6 in the weights and 4 in the configuration"
    refused(peft, shapes, "use_dora", "bias 'all'", "(?=x)", ranks, "lora_A and no lora_B", error=UnknownMethod)


@pytest.mark.parametrize(
    ("name", "shape", "word"),
    [
        ("base_model.model.wte.lora_embedding_A", (4, 8), "embeddings"),
        (f"base_model.model.{PATHS[0]}.lora_magnitude_vector.weight", (8,), "DoRA"),
        ("base_model.model.lm_head.base_layer.weight", (8, 8), "save_embedding_layers=False"),
        (f"base_model.model.{PATHS[0]}.lora_A.default.weight", (4, 8), "are named"),
        (f"base_model.model.{PATHS[0]}.lora_B.bias", (8,), "bias on B"),
        ("base_model.model..lora_A.weight", (4, 8), "are named"),
        ("base_model.model.a b.lora_A.weight", (4, 8), "are named"),
        ("base_model.model.*.lora_A.weight", (4, 8), "are named"),
        ("base_model.model.conv.lora_A.weight", (4, 8, 1, 1), "two sizes"),
        (f"base_model.model.{PATHS[0]}.lora_B.weight", (12, 5), "4 in lora_A and 5 in lora_B"),
    ],
)
def test_tensors_are_refused_by_name(name: str, shape: tuple[int, ...], word: str) -> None:
    refused(peft_fields(), {**ALL_FOUR, name: shape}, word)


def test_weights_without_a_tensor_are_refused() -> None:
    refused(peft_fields(), {}, "no tensor")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("r", "8"),
        ("r", 0),
        ("r", 2.5),
        ("r", True),
        ("lora_alpha", float("inf")),
        ("lora_alpha", -1),
        ("rank_pattern", [1]),
        ("alpha_pattern", {"q_proj": None}),
        ("target_modules", 3),
        ("target_modules", [3]),
        ("layers_to_transform", "0"),
        ("use_rslora", 1),
        ("rank_pattern", {"(": 1}),
        ("rank_pattern", {"a**": 1}),
    ],
    ids=str,
)
def test_values_of_another_kind_are_refused(field: str, value: Any) -> None:
    refused(peft_fields(**{field: value}), ALL_FOUR, field)


def test_a_long_list_of_problems_is_cut() -> None:
    with pytest.raises(InvalidManifest, match=r"\(299 more problems\)") as caught:
        lora_config(peft_fields(), {f"x{n}": (1,) for n in range(300)})
    assert len(caught.value.problems) == 101


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["q_proj", "(", ".*"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=4,
)
SHAPES = st.lists(st.integers(0, 5), max_size=3).map(tuple)


@settings(max_examples=100)
@given(st.dictionaries(st.sampled_from(sorted(vars(LoraFile()))) | st.text(max_size=8), JSON, max_size=4))
def test_any_configuration_is_read_or_refused(fields: dict[str, Any]) -> None:
    with contextlib.suppress(UnknownMethod, InvalidManifest):
        assert set(lora_config(peft_fields(**fields), ALL_FOUR).modules()) == set(PATHS)


@given(st.dictionaries(st.sampled_from(list(ALL_FOUR)) | st.text(max_size=30), SHAPES, max_size=6))
def test_any_tensors_are_read_or_refused(shapes: dict[str, tuple[int, ...]]) -> None:
    with contextlib.suppress(UnknownMethod, InvalidManifest):
        modules = lora_config({"peft_type": "LORA", "r": 4}, shapes).modules()
        assert {f"base_model.model.{path}.lora_{x}.weight" for path in modules for x in "AB"} == set(shapes)


# --- patterns -------------------------------------------------------------------------------------


def test_names_have_no_line_break_that_a_dollar_could_match_before() -> None:
    name = f"{PATHS[0]}\n"
    assert get_pattern_key(["q_proj$"], name) == "q_proj$"
    assert not Pattern("q_proj$", after_dot=True).matches(name)
    refused(peft_fields(rank_pattern={"q_proj$": 4}), tensors({name: 4}), "are named base_model.model")


def test_the_sentence_names_what_is_not_read() -> None:
    for source, words in {
        "(?=x)": "'(?=x)', which is not read here: it has '(?='; name the modules.",
        r"(x)\1": r"which is not read here: it has '\\1'; name the modules.",
        "x**": "'x**', which is not read here: bad repetition operator: **; name the modules.",
    }.items():
        refused(peft_fields(rank_pattern={source: 2}), ALL_FOUR, words)


def test_names_are_looked_up_and_expressions_have_a_bounded_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patterns, "MAX_STEPS", 300_000)
    shapes = tensors({f"model.layers.{i}.m{j}": 4 for i in range(40) for j in range(50)})
    names = {f"layers.{i}.m{j}": 4 for i in range(40) for j in range(50)}
    assert len(lora_config(peft_fields(target_modules=None, rank_pattern=names), shapes).modules()) == 2000
    costly = "(.?.?.?.?){64}"
    refused(
        peft_fields(target_modules=None, rank_pattern={f"{costly}z{n}": 4 for n in range(60)}), shapes, "take too long"
    )
    refused(peft_fields(target_modules=f"{costly}z|.*"), shapes, "take too long on 2000 modules")


def test_what_large_adapters_have_is_within_the_bound() -> None:
    shapes = tensors({f"model.layers.{i}.mlp.experts.{j}.down_proj": 4 for i in range(40) for j in range(50)})
    ranks = {rf"layers\.(0|1{n})\..*experts\.\d+\.(up|down)_proj": 4 for n in range(20)}
    target = r".*(?:self_attn|mlp).*?(?:q_proj|k_proj|v_proj|o_proj|gate_proj|up_proj|down_proj)"
    config = lora_config(peft_fields(target_modules=target, rank_pattern=ranks, alpha_pattern=ranks), shapes)
    assert len(config.modules()) == 2000


def test_reading_expressions_is_work_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patterns, "MAX_STEPS", 200_000)
    many = {f"[{n:03}a]": 4 for n in range(1000)}
    refused(peft_fields(rank_pattern=many), tensors(dict.fromkeys(PATHS, 4)), "it takes too long")


PART = st.sampled_from(["a", "b", "c_attn", "x_b"])
MODULES = st.dictionaries(
    st.builds(lambda n, i, leaf: f"{n}.layers.{i}.{leaf}", PART, st.integers(0, 12), PART),
    st.builds(LoraModule, st.integers(1, 4), st.sampled_from([0.5, 1.0, 16.0])),
    min_size=1,
    max_size=12,
)


# --- writing --------------------------------------------------------------------------------------


# --- writing --------------------------------------------------------------------------------------


@given(MODULES, st.booleans(), st.data())
def test_what_is_written_is_read_back(modules: dict[str, LoraModule], rslora: bool, data: st.DataObject) -> None:
    config = LoraConfig.of(modules, rslora=rslora)
    extra = data.draw(st.lists(st.sampled_from(["a.layers.0.a", "b.layers.3.b", "lm_head"]), max_size=3))
    linears = data.draw(st.sampled_from([[], [*modules, *extra]]))
    written = peft_config(config, shape=base(linears), base_name="acme/base")
    assert lora_config(written, tensors({p: m.rank for p, m in modules.items()})) == config
    named = written["target_modules"]
    targeted = {p for p in linears if any(p == n or p.endswith(f".{n}") for n in named)}
    assert targeted == (set(modules) if linears else set())


def test_it_is_short_where_the_base_is_known() -> None:
    config = LoraConfig.of({path: LoraModule(8 if "v_proj" in path else 4, 16.0) for path in PATHS})
    written = peft_config(config, shape=base([*PATHS, "lm_head"]))
    assert written["target_modules"] == ["q_proj", "v_proj"]
    assert (written["r"], written["rank_pattern"], written["lora_alpha"]) == (4, {"v_proj": 8}, 16)
    assert not written["fan_in_fan_out"]
    assert peft_config(config, shape=base([*PATHS, LAYER.format(2, "q_proj")]))["target_modules"] == [
        *sorted(path for path in PATHS if "q_proj" in path),
        "v_proj",
    ]


@pytest.mark.parametrize(
    ("path", "shape", "field", "value"),
    [
        ("transformer.h.0.attn.c_attn", base([], model_type="gpt2"), "fan_in_fan_out", True),  # of Conv1D
        (
            "encoder.layer.0.attention.self.query",
            base([], model_type="bert", kind="encoder"),
            "task_type",
            "FEATURE_EXTRACTION",
        ),
    ],
)
def test_what_the_base_says_is_written(path: str, shape: BaseShape, field: str, value: object) -> None:
    config = LoraConfig.of({path: LoraModule(2, 1e9)})  # the largest alpha
    written = peft_config(config, shape=shape)
    assert written[field] == value
    assert lora_config(written, tensors({path: 2})) == config


# --- expressions ----------------------------------------------------------------------------------


ATOMS = st.sampled_from(["a", "b", ".", r"\.", r"\d", r"\w", "[ab]", "[^a.]", "^", "$", "0"])
EXPRESSIONS = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map("".join),
        st.lists(inner, min_size=1, max_size=3).map(lambda branches: f"({'|'.join(branches)})"),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{1,3}", "{0,}", "*?"])).map(
            lambda t: f"(?:{t[0]}){t[1]}"
        ),
    ),
    max_leaves=6,
)


@given(EXPRESSIONS, st.text("ab0._", max_size=8))
def test_as_pythons_own(source: str, text: str) -> None:
    try:
        whole, tail = Pattern(source), Pattern(source, after_dot=True)
    except UnsupportedPatternError:
        return
    assert whole.matches(text) == (re.fullmatch(source, text) is not None)
    assert tail.matches(text) == (re.match(rf"(.*\.)?({source})\Z", text) is not None)


@pytest.mark.parametrize(
    "source", ["(a+)+b", "(a|a)*b", "(a?){30}a{30}", "(.*.*)*b", "((a*)*)*b", "a?" * 60 + "a" * 60]
)
def test_what_keeps_pythons_own_busy_is_over_at_once(source: str) -> None:
    assert Pattern(source).matches("a" * 80) == source.startswith("a?")


@pytest.mark.parametrize(
    "source",
    [
        "(",
        ")",
        "a)",
        "a)|(b",
        "(?=a)",
        "(?<!a)b",
        r"(a)\1",
        "*",
        "[b-a]",
        "é",
        "\ud800",
        "a" * 2001,
        "a\\",
        "a{2,1}",
        "((a{64}){64}){64}",
        ".{1000}" * 60,
    ],
)
def test_what_is_not_read(source: str) -> None:
    for after_dot in (False, True):
        with pytest.raises(UnsupportedPatternError):
            Pattern(source, after_dot=after_dot)


@pytest.mark.parametrize(
    "source",
    [
        "a{,3}",
        "a{01}",
        "a{1,02}",
        "[[:alpha:]]",
        r"\z",
        r"\Z",
        r"\pN",
        r"\Qa.\E",
        r"\C",
        r"(a)\12",
        r"\x{41}",
        "a++",
        "a*+",
        "a{2}+",
        "(?i)a",
        "(?U)a",
        "(?P<x>a)",
        "(?<x>a)",
        "(?>a)",
        "(?#a)",
    ],
)
def test_what_re2_reads_otherwise_than_python_is_not_read(source: str) -> None:
    with pytest.raises(UnsupportedPatternError):
        Pattern(source)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("a{99}", "a" * 99),
        ("((((((a))))))", "a"),
        (r"\bmodel\.\b.*\D", "model.x"),
        (r"q\_proj\-\/", "q_proj-/"),
        ("[]a]{2}", "]a"),
        (r"[^\W\d_]+", "abc"),
        (r"\Aa$", "a"),
        (r"a\\b\{,3}", r"a\b{,3}"),
    ],
)
def test_what_both_read_alike(source: str, text: str) -> None:
    assert Pattern(source).matches(text)
    assert re.fullmatch(source, text)
    assert not Pattern(source).matches(f"{text}0")


@pytest.mark.parametrize("source", ["^" * 500, "|" * 500, "()" * 500, "(?:(?:$){30}){30}", "(|){64}" * 9])
def test_what_reads_no_character_counts_as_work_too(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expressions, "MAX_STEPS", 1_200_000)
    pattern = Pattern(source, after_dot=True)
    with pytest.raises(UnsupportedPatternError, match="too long"):
        for _ in range(5000):
            pattern.matches("")
