"""Adapter directories: what is written is read back, what is wrong is refused in a sentence, nothing is half there."""

from __future__ import annotations

import json
import os
import re
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from registry.errors import Conflict, InvalidManifest, InvalidSample, NotFound, SoupError, UnknownMethod
from registry.formats import (
    CARD_FILE,
    CONFIG_FILE,
    EMBEDDINGS_FILE,
    GGUF_FILE,
    WEIGHTS_FILE,
    AdapterContents,
    EmbeddingsNote,
    check_place,
    format_card,
    parse_card,
    place_files,
    read_directory,
    write_directory,
)
from registry.formats.card import LOADING_END, LOADING_START, LoadingText
from registry.spec import BottleneckConfig, Card, Provenance

CONFIG = BottleneckConfig(structure="bapna_firat", bottleneck=4, activation="relu")
DIGEST = "sha256:" + "a" * 64


def written(path: Path, *, replace: bool = False, **changes: Any) -> Path:
    values: dict[str, Any] = {"config": CONFIG, "domain": "law", "weights": b"w", "base_model": "tiny", **changes}
    write_directory(path, AdapterContents(**values), replace=replace)
    return path


def edit_config(path: Path, **changes: Any) -> None:
    file = path / CONFIG_FILE
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


# --- round trip -----------------------------------------------------------------------------------


def test_everything_comes_back(tmp_path: Path) -> None:
    provenance = Provenance(init_hash=DIGEST, init_source="trained_here", init_seed=3, training={"lr": 0.001})
    card = Card(description="# Law\n\ntext", license="mit", tags=("a", "b"), metadata={"k": 1, "x": None})
    contents = AdapterContents(
        config=CONFIG,
        domain="US law",
        weights=b"weights",
        base_model="tiny",
        base_fingerprint=DIGEST,
        provenance=provenance,
        texts=["one", "zwei \u2028 drei"],
        card=card,
    )
    folder, second = (write_directory(tmp_path / name, contents) for name in ("law", "again"))
    assert [file.read_bytes() for file in sorted(folder.path.iterdir())] == [
        file.read_bytes() for file in sorted(second.path.iterdir())
    ]
    assert folder == read_directory(tmp_path / "law")
    assert (folder.config, folder.provenance, folder.card) == (CONFIG, provenance, card)
    assert (folder.domain, folder.base_model, folder.base_fingerprint) == ("US law", "tiny", DIGEST)
    assert folder.weights.read_bytes() == b"weights"
    lines = folder.sample.read_text().removesuffix("\n").split("\n")
    assert [json.loads(line)["text"] for line in lines] == ["one", "zwei \u2028 drei"]
    assert folder.embeddings is None


def test_embeddings_carry_what_made_them(tmp_path: Path) -> None:
    note = EmbeddingsNote(encoder=DIGEST, unit="sentence")
    folder = read_directory(written(tmp_path / "a", embeddings=(b"vectors", note)))
    assert (folder.embeddings, folder.embeddings_note, folder.sample) == (tmp_path / "a" / EMBEDDINGS_FILE, note, None)


def test_the_card_comes_back(tmp_path: Path) -> None:
    card = written(tmp_path / "soup", relation="merge") / CARD_FILE
    assert 'base_model_relation: "merge"' in card.read_text().split("---")[1]
    card.unlink()
    assert read_directory(tmp_path / "soup").card == Card()
    card.write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidManifest, match="UTF-8"):
        read_directory(tmp_path / "soup")


# --- writing --------------------------------------------------------------------------------------


def test_files_and_names_are_durable_before_the_place_of_the_old_one_is_gone(tmp_path: Path, synced) -> None:
    written(tmp_path / "law", weights=b"old")
    synced.clear()
    written(tmp_path / "law", replace=True)
    files, folders = [event.removeprefix("sync ") for event in synced[:-2]], synced[-2:]
    assert sorted(files) == sorted(path.name for path in (tmp_path / "law").iterdir())
    assert folders[0].startswith("sync .law.")
    assert folders[1] == f"sync {tmp_path.name}"


def test_an_existing_directory_is_kept_and_replaced_only_where_that_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    written(tmp_path / "a", weights=b"old", texts=["x"])  # an empty one is filled
    with pytest.raises(Conflict, match="not empty"):
        written(tmp_path / "a", weights=b"new")
    assert (tmp_path / "a" / WEIGHTS_FILE).read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["a"]
    written(tmp_path / "a", weights=b"new", replace=True)
    assert sorted(p.name for p in (tmp_path / "a").iterdir()) == sorted([CONFIG_FILE, WEIGHTS_FILE, CARD_FILE])
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


def test_an_old_directory_stays_where_the_new_one_cannot_have_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(tmp_path / "a", weights=b"old")
    rename = Path.rename

    def refuse(self: Path, target: Path) -> Path:
        if target == tmp_path / "a" and self.suffix != ".old":
            raise OSError("no")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", refuse)
    with pytest.raises(OSError, match="no"):
        written(tmp_path / "a", weights=b"new", replace=True)
    assert (tmp_path / "a" / WEIGHTS_FILE).read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


def test_what_is_no_adapter_s_is_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "law.jsonl").write_text("mine")
    (written(tmp_path / "project") / "src").mkdir()
    for name in ("texts", "project"):
        with pytest.raises(Conflict, match="is not replaced"):
            written(tmp_path / name, replace=True)
    assert (tmp_path / "texts" / "law.jsonl").read_text() == "mine"
    assert (tmp_path / "project" / "src").is_dir()


@pytest.mark.parametrize("adapter", [GGUF_FILE, CONFIG_FILE])
def test_what_lies_beside_an_adapter_is_never_deleted_with_it(tmp_path: Path, adapter: str) -> None:
    folder = tmp_path / "models"
    folder.mkdir()
    (folder / adapter).write_bytes(b"old")
    (folder / "llama-3-8b.gguf").write_bytes(b"mine")
    with pytest.raises(Conflict, match=r"other files than one adapter \(llama-3-8b.gguf\)"):
        place_files(folder, {adapter: b"new"}, replace=True)
    assert (folder / "llama-3-8b.gguf").read_bytes() == b"mine"
    (folder / "llama-3-8b.gguf").unlink()
    place_files(folder, {adapter: b"new"}, replace=True)
    assert (folder / adapter).read_bytes() == b"new"


def test_a_file_or_link_in_the_way_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    for name in ("file", "link"):
        with pytest.raises(Conflict, match="not a directory"):
            written(tmp_path / name, replace=True)
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_the_current_directory_is_refused_by_each_of_its_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for path in (Path(), tmp_path, Path("..") / tmp_path.name):
        for replace in (False, True):
            with pytest.raises(Conflict, match=r"is the current directory.*such as \./law"):
                check_place(path, replace=replace)
    written(Path("law"))


def test_a_crash_while_writing_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", Mock(side_effect=OSError(28, "No space left on device")))
    with pytest.raises(OSError, match="space"):
        written(tmp_path / "a")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("contents", "error", "sentence"),
    [
        ({"texts": ["ok", "\ud800"]}, InvalidSample, "surrogate"),
        (
            {"texts": ["x"], "embeddings": (b"", EmbeddingsNote(encoder=DIGEST, unit="passage"))},
            InvalidManifest,
            "not both",
        ),
    ],
)
def test_what_is_refused_before_anything_is_written(
    tmp_path: Path, contents: dict[str, Any], error: type[SoupError], sentence: str
) -> None:
    with pytest.raises(error, match=sentence):
        written(tmp_path / "a", **contents)
    assert list(tmp_path.iterdir()) == []


# --- refusals -------------------------------------------------------------------------------------


def test_missing_files(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="not a directory"):
        read_directory(tmp_path / "a")
    weights = written(tmp_path / "a") / WEIGHTS_FILE
    for name, sentence in {
        "pytorch_model.bin": r"safetensors only; 'pytorch_model\.bin'",
        "pytorch_adapter.bin": rf"pytorch_adapter.bin is AdapterHub's: `soup convert {tmp_path / 'a'} TARGET`",
        "adapter.safetensors": "adapter.safetensors is AdapterHub's",
        "other": "has no adapter_model",
    }.items():
        weights = weights.rename(tmp_path / "a" / name)
        with pytest.raises(NotFound, match=sentence):
            read_directory(tmp_path / "a")
    (tmp_path / "a" / CONFIG_FILE).unlink()
    with pytest.raises(NotFound, match="not an adapter directory"):
        read_directory(tmp_path / "a")


def test_duplicate_keys_and_several_problems(tmp_path: Path) -> None:
    file = written(tmp_path / "a") / CONFIG_FILE
    edit_config(tmp_path / "a", domain="", surprise=1)
    with pytest.raises(InvalidManifest, match="1 more") as caught:
        read_directory(tmp_path / "a")
    assert len(caught.value.problems) == 2
    file.write_text(file.read_text().replace('"domain"', '"domain": "x", "domain"', 1))
    with pytest.raises(InvalidManifest, match="'domain' twice") as caught:
        read_directory(tmp_path / "a")
    assert str(file) in caught.value.message


@pytest.mark.parametrize(
    ("method", "error", "sentence"),
    [
        ({"method": "bottleneck", "structure": "odd"}, UnknownMethod, "structure"),
        ({"method": "ia3"}, UnknownMethod, "'bottleneck', 'lora'"),
        ({}, InvalidManifest, "config: needs the field 'method', one of adamix, bottleneck,"),
    ],
)
def test_a_method_that_is_unknown_or_missing_is_named_with_the_known_ones(
    tmp_path: Path, method: dict[str, str], error: type[SoupError], sentence: str
) -> None:
    config = {"structure": "pfeiffer", "bottleneck": 1, "activation": "relu", **method}
    edit_config(written(tmp_path / "a"), config=config)
    with pytest.raises(error, match=sentence):
        read_directory(tmp_path / "a")


@pytest.mark.parametrize(("texts", "sentence"), [(["x"], "keep only one"), (None, "does not say what made")])
def test_embeddings_beside_texts_or_of_an_unknown_encoder(
    tmp_path: Path, texts: list[str] | None, sentence: str
) -> None:
    (written(tmp_path / "a", texts=texts) / EMBEDDINGS_FILE).write_bytes(b"")
    with pytest.raises(InvalidManifest, match=sentence):
        read_directory(tmp_path / "a")


def test_a_huge_config(tmp_path: Path) -> None:
    with (written(tmp_path / "a") / CONFIG_FILE).open("r+b") as file:
        file.truncate(17 * 1024 * 1024)
    with pytest.raises(InvalidManifest, match="limit"):
        read_directory(tmp_path / "a")


# --- cards ----------------------------------------------------------------------------------------


PART = st.from_regex(r"[a-z0-9][a-z0-9._-]{0,20}", fullmatch=True)
UNICODE = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=60)
CARDS = st.builds(
    Card,
    description=UNICODE | st.sampled_from(["---", "---\nx: 1\n---", "\n", "\n\n", "# x\n", "- a", "\r\n"]),
    license=st.none() | UNICODE.filter(bool) | st.sampled_from(["[a]", "[a, b]", "[[", "5", "null"]),
    tags=st.lists(PART, max_size=3).map(tuple),
    metadata=st.dictionaries(UNICODE, st.none() | st.booleans() | st.integers() | UNICODE, max_size=3),
)


@given(CARDS)
def test_round_trip(card: Card) -> None:
    assert parse_card(format_card(card, base_model="tiny", domain="a\n---\nb")) == card


@given(
    CARDS,
    st.sampled_from(
        [
            "",
            f"{LOADING_START}\n",
            f"\n{LOADING_START}\n## Use\nof another\n",
            f"{LOADING_END}\n",
            f"\n{LOADING_START}\nx\n{LOADING_END}\n",
        ]
    ),
)
def test_what_a_registry_says_of_the_use_comes_and_goes(card: Card, prefix: str) -> None:
    """Whatever stands in the description, and were it what a registry says."""
    card = card.model_copy(update={"description": prefix + card.description})
    written = format_card(card, base_model="tiny", loading_text=LoadingText(library="peft", text="Load it."))
    assert written.endswith(f"Load it.\n{LOADING_END}\n")
    assert 'library_name: "peft"' in written
    assert parse_card(written) == card


@pytest.mark.parametrize("ends", ["\n", "\r\n"])
def test_what_people_write_below_is_kept(ends: str) -> None:
    """Also by an editor that ends lines its own way, in all of the text or where it was changed."""
    card, loading_text = Card(description="Judgements."), LoadingText(library="peft", text="Load it.\n")
    written = format_card(card, base_model="tiny", loading_text=loading_text)
    one_line_changed = written.replace(f"{LOADING_START}\n", f"{LOADING_START}{ends}")
    for changed in (written.replace("\n", ends), written.removesuffix("\n"), one_line_changed):
        assert parse_card(changed) == card
    whole = parse_card((written + "\nNot for advice.\n").replace("\n", ends))
    assert whole == Card(description="Judgements.\n\nNot for advice.")
    assert parse_card(format_card(whole, base_model="tiny", loading_text=loading_text)) == whole
    assert "Load it." in parse_card(written.replace(LOADING_END, "")).description  # nobody can tell where it ends


@pytest.mark.parametrize(
    ("text", "card"),
    [
        (
            "---\n# a comment\nlicense: apache-2.0\nlibrary_name: peft\nwidget:\n- text: hello\n"
            "tags:\n- law\n- us\nmetadata:\n  epochs: 3\n  note: it's fine\n---\n# Title\n\nBody\n",
            Card(
                description="# Title\n\nBody",
                license="apache-2.0",
                tags=("law", "us"),
                metadata={"epochs": 3, "note": "it's fine"},
            ),
        ),
        ("---\r\ntags: law\r\n---\r\n", Card(tags=("law",))),
        (
            "---\nlicense: a\nlicense: b\nmetadata: {k: 1, k: 2}\n---\n",
            Card(license="b", metadata={"k": 2}),
        ),
        (
            "---\n'license': \"apache\\u002d2.0\"  # as the base model's\nmodel-index:\n- name: x\n  results:\n"
            "  - task: {type: text-generation}\ntags: [\n  law,\n  'us', # and\n  \"eu\"\n]\nmetadata:\n"
            "  note: >-\n    two lines\n    of one\n  said: 'it''s 5'\n  five: \"5\"\n  epochs: 5\n  lr: 1e-5\n"
            "  done: true\n  none: null\n  empty:\n---\ntext",
            Card(
                description="text",
                license="apache-2.0",
                tags=("law", "us", "eu"),
                metadata={
                    "note": "two lines of one",
                    "said": "it's 5",
                    "five": "5",
                    "epochs": 5,
                    "lr": 1e-5,
                    "done": True,
                    "none": None,
                    "empty": "",
                },
            ),
        ),
        (  # words that YAML takes for something else
            "---\nlicense: no\nmetadata: {on: 2026-11-22, 1: yes, 2026-01-01: 012, time: '12:30'}\n---\n",
            Card(license="no", metadata={"on": "2026-11-22", "1": "yes", "2026-01-01": "012", "time": "12:30"}),
        ),
        ("---\nlicense: 2\ntags: [on, y]\n---\n", Card(license="2", tags=("on", "y"))),
    ],
)
def test_yaml_as_people_write_it(text: str, card: Card) -> None:
    assert parse_card(text) == card


@pytest.mark.parametrize("text", ["just text", "---\nnot closed", "", "--- \n", "a\n---\nb: 1\n---"])
def test_without_front_matter_all_is_text(text: str) -> None:
    assert parse_card(text) == Card(description=text.removesuffix("\n"))


def test_a_foreign_card_gives_the_tags_and_metadata_it_has() -> None:
    for written in ("5", "true", '{"a": 1}', "", "null", "[5, LLaMA]"):
        assert parse_card(f"---\ntags: {written}\n---\n", foreign=True).tags == ()
    assert parse_card("---\ntags:\n- law\n- base_model:adapter:x\n---\n", foreign=True).tags == ("law",)
    text = "---\nmetadata:\n  a: {b: 1}\n  c:\n  - 1\n  d: 2\n---\n"
    assert parse_card(text, foreign=True).metadata == {"d": 2}
    with pytest.raises(InvalidManifest, match=r"README\.md: metadata 'a' is a table"):
        parse_card(text)
    tagged = "---\nmetadata:\n  k: !!python/object/apply:os.system [exit 1]\n  n: !!binary aGk=\n---\n"
    assert parse_card(tagged, foreign=True).metadata == {"n": "aGk="}  # no objects are made


def test_long_and_deep_front_matter_is_read_at_once() -> None:
    body = "b:\n" + "- a\n" * 50_000 + "c:\n" + "".join(f" k{i}: a\n" for i in range(50_000))
    nested = "d: " + "[" * 5000 + "x" + "]" * 5000
    card = parse_card(f"---\n{body}{nested}\nlicense: mit\n---\ntext")
    assert (card.license, card.description) == ("mit", "text")


@pytest.mark.parametrize(
    ("value", "says"),
    [("{by: ana}", "'run' is a table"), ("[1]", "'run' is a list"), ("NaN", "'run' is nan")],
)
def test_metadata_that_no_card_can_hold_is_named(value: str, says: str) -> None:
    with pytest.raises(InvalidManifest, match=f"^README.md: metadata {says}; a text, a number"):
        parse_card(f"---\nmetadata:\n  run: {value}\n---\n")


def test_values_a_card_cannot_hold() -> None:
    with pytest.raises(InvalidManifest, match=r"README\.md: tags"):
        parse_card("---\ntags: ['LLaMA Factory']\n---\n")
    assert len(parse_card("x" * 20_000).description) == 20_000
    with pytest.raises(InvalidManifest, match=r"README\.md has 20001 characters of text.*is 20000"):
        parse_card("---\nlicense: mit\n---\n" + "x" * 20_001)


@pytest.mark.parametrize(
    ("matter", "says"),
    [
        ("metadata:\n  a: &a [x, x]\n  b: &b [*a, *a]\n  c: [*b, *b]", "the alias 'a', and aliases are not taken"),
        ("metadata: &a\n  k: *a", "alias"),
        ("tags: [&a law, *a]", "alias"),
        ("tags: *elsewhere", "alias"),
        ("metadata:\n  <<: *base", "alias"),
        ("tags:\n" + "- a\n" * 6000, "24006 characters, and 20000 are the most"),
        ("tags: " + "[" * 9000 + "x" + "]" * 9000, "nested more than 16 deep"),
        ("metadata: " + "{a: " * 4000, "nested more than 16 deep"),
        ("license: a: b", "mapping values are not allowed here"),
        ("tags: [law", "expected ',' or ']'"),
        ("license: a\x00b", "special characters are not allowed"),
        ("metadata: {[a]: b}", "a key in it is no text"),
    ],
    ids=lambda text: text[:24],
)
def test_what_is_not_parsed(matter: str, says: str) -> None:
    key = matter.partition(":")[0]
    for foreign in (False, True):
        with pytest.raises(InvalidManifest, match=rf"README\.md: {key} cannot be read: .*{re.escape(says)}"):
            parse_card(f"---\n{matter}\n---\ntext", foreign=foreign)


def test_what_a_card_does_not_hold_is_not_parsed_at_all() -> None:
    laughs = "".join(f"{b}: &{b} [{', '.join([f'*{a}'] * 9)}]\n" for a, b in pairwise("abcdefghij"))
    card = parse_card(f"---\na: &a [x, x]\n{laughs}broken: [\nlicense: mit\n---\ntext")
    assert card == Card(license="mit", description="text")
