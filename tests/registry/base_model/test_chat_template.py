"""Chat templates: the model's own or the operator's, and which token ends an answer in one."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from registry.base_model import load_text, read_allowlist
from registry.base_model.chat_template import render, template_of
from registry.errors import InvalidParameter, Unavailable
from registry.spec import BaseEntry
from tests.tiny_models import build_tiny_encoder, with_special

OURS = "{% for m in messages %}<{{ m.role }}>{{ m.content }}<|endoftext|>\n{% endfor %}"
NEEDS_SYSTEM = "{% if messages[0].role != 'system' %}{{ raise_exception('a system message comes first') }}{% endif %}"
HELLO = [{"role": "user", "content": "Hi"}]


@pytest.fixture
def folder(tiny_base_dir: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_base_dir, tmp_path / "model"))


def allowlist(folder: Path, template: str, kind: str = "causal") -> Path:
    """An allowlist beside the model."""
    path = folder.parent / "bases.toml"
    path.write_text(f'[bases.tiny]\nsource = "model"\nkind = "{kind}"\nchat_template = {json.dumps(template)}\n')
    return path


def entry(folder: Path, **fields: Any) -> BaseEntry:
    return BaseEntry(id="tiny", source=str(folder), **fields)


def test_a_template_is_text_or_a_file_beside_the_allowlist(folder: Path) -> None:
    inline = read_allowlist(allowlist(folder, OURS))["tiny"]
    (folder.parent / "chat.jinja").write_text(OURS)
    named = read_allowlist(allowlist(folder, "chat.jinja"))["tiny"]
    assert inline.chat_template == named.chat_template == OURS
    assert inline == named
    assert read_allowlist(allowlist(folder, str(folder.parent / "chat.jinja")))["tiny"] == named


@pytest.mark.parametrize(
    ("template", "kind", "said"),
    [
        ("chat.jinja", "causal", r"chat_template 'chat\.jinja' is neither a template .* \(.*No such file"),
        ("", "causal", "neither a template"),
        ("latin.jinja", "causal", "it is not UTF-8 text"),
        ("~nosuchuser/x", "causal", r"chat_template '~nosuchuser/x' is neither .*\(Could not determine home"),
        ("a\x00b", "causal", r"chat_template 'a\\x00b' is neither .*\(embedded null byte\)"),
        ("a\nb", "causal", r"chat_template 'a\\nb' is neither .*No such file"),
        (OURS, "encoder", "an encoder cannot chat"),
    ],
)
def test_what_is_no_template_is_refused_with_the_allowlist(folder: Path, template: str, kind: str, said: str) -> None:
    (folder.parent / "latin.jinja").write_bytes(b"caf\xe9")
    with pytest.raises(InvalidParameter, match=said) as caught:
        read_allowlist(allowlist(folder, template, kind))
    assert "\n" not in caught.value.message


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("{% for m in messages %}\n{{ m.content", r"fails on a user's message \(line 2\): TemplateSyntaxError"),
        ("{{ messages | no_such }}", "No filter named 'no_such'"),
        ("{{ raise_exception('only tools') }}", "only tools"),
        ("{{ raise_exception('only\ntools') }}", "only tools"),
        ("{{ messages[0].nothing.at_all }}", "UndefinedError"),
        (
            "{% for m in messages %}{{ m.role }}{% endfor %}",
            "drops the content of .*: the result is 'user'",
        ),
    ],
)
def test_a_broken_template_is_refused_in_one_sentence(folder: Path, template: str, said: str) -> None:
    with pytest.raises(Unavailable, match=said) as caught:
        load_text(entry(folder, chat_template=template))
    assert caught.value.message.startswith("Base model 'tiny': its chat_template ")
    assert "\n" not in caught.value.message


def test_the_operators_template_wins_and_changes_no_fingerprint(folder: Path) -> None:
    plain = load_text(entry(folder))
    assert template_of(plain.tokenizer) is None
    (folder / "chat_template.jinja").write_text("{% for m in messages %}theirs {{ m.content }}{% endfor %}")
    theirs, ours = load_text(entry(folder)), load_text(entry(folder, chat_template=OURS))
    assert render(theirs.tokenizer, HELLO) == "theirs Hi"
    assert render(ours.tokenizer, HELLO) == "<user>Hi<|endoftext|>\n"
    assert plain.shape.fingerprint == theirs.shape.fingerprint == ours.shape.fingerprint


def test_of_several_templates_the_one_for_conversations_is_used(folder: Path) -> None:
    tokenizer = load_text(entry(folder)).tokenizer
    tokenizer.chat_template = {"default": OURS, "tool_use": "{{ tools }}"}
    assert template_of(tokenizer) == OURS
    tokenizer.chat_template = {"tool_use": "{{ tools }}"}
    assert template_of(tokenizer) is None


@pytest.mark.parametrize(
    ("template", "ends"),
    [
        (OURS, "<|endoftext|>"),
        ("{% for m in messages %}{{ m.content }}\n  <|turn|>{% endfor %}", "<|turn|>"),
        ("{% for m in messages %}{{ m.content }}\n{% endfor %}", None),
        ("{% for m in messages %}{{ m.content }} over{% endfor %}", None),
        ("{% if messages|length > 1 %}{{ raise_exception('one') }}{% endif %}{{ messages[0].content }}", None),
        (NEEDS_SYSTEM + OURS, "<|endoftext|>"),
        (None, None),
    ],
)
def test_the_special_token_behind_an_answer_ends_it(folder: Path, template: str | None, ends: str | None) -> None:
    with_special(folder, "<|turn|>")
    text = load_text(entry(folder, chat_template=template))
    assert text.turn_id == {None: None, "<|endoftext|>": 0, "<|turn|>": 300}[ends]


@pytest.mark.parametrize(
    ("saved", "ends"),
    [
        ({"eos_token_id": [0, 300]}, (0, 300)),
        ({"eos_token_id": 300}, (300,)),
        ({"eos_token_id": [300, 7]}, (300,)),  # 7 is a letter
        ({"eos_token_id": [True, False, -1, 10**9, 300.0, "300", None, [300]]}, ()),
        ({"eos_token_id": 300, "_from_model_config": True}, ()),
        ({"eos_token_id": 300, "_from_model_config": False}, (300,)),
        ({}, ()),
        (None, ()),
    ],
)
def test_generation_config_names_more_special_tokens_that_end(
    folder: Path, saved: dict[str, Any] | None, ends: tuple[int, ...]
) -> None:
    with_special(folder, "<|turn|>")
    file = folder / "generation_config.json"
    file.unlink(missing_ok=True)
    if saved is not None:
        file.write_text(json.dumps(saved))
    assert load_text(entry(folder)).end_ids == ends


@pytest.mark.parametrize(("text", "said"), [("{", "Expecting"), ("[7]", "generation_config.json holds a list")])
def test_an_unreadable_generation_config_is_said(folder: Path, text: str, said: str) -> None:
    (folder / "generation_config.json").write_text(text)
    with pytest.raises(Unavailable, match=f"cannot be loaded from .*{said}"):
        load_text(entry(folder))


def test_text_that_begins_with_the_bos_gets_no_other(folder: Path) -> None:
    base = load_text(entry(folder))
    bare = base.tokenize("The fox", bos=False)
    assert base.tokenize("<|endoftext|>The fox") == base.tokenize("The fox") == [0, *bare]
    assert base.tokenize("<|endoftext|>The fox", bos=False) == [0, *bare]
    assert base.tokenize("<|endoftext|><|endoftext|>The fox") == [0, 0, *bare]  # what a text says twice stays
    assert base.tokenize(" <|endoftext|>The fox")[1:] == base.tokenize(" <|endoftext|>The fox", bos=False)


def test_text_that_begins_with_an_encoders_cls_gets_no_other(tmp_path: Path) -> None:
    base = load_text(BaseEntry(id="tiny", source=str(build_tiny_encoder(tmp_path)), kind="encoder"))
    assert base.turn_id is None
    assert base.tokenize("<s>The fox") == base.tokenize("The fox")
