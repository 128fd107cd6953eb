"""What a failure says to people at a command line."""

import pytest
import typer

from adaptersoup.cli.failures import Failures, exit_code, explain, not_installed
from registry.errors import Busy, Forbidden, Incompatible, InvalidParameter, SoupError, Unauthenticated


@pytest.mark.parametrize(
    ("message", "hinted"),
    [
        ("Several base models are here: give base_model.", True),
        ("base_model 'x' is not one of small.", True),
        ("Two are that one; say which it is as 'base_model', one of a, b.", True),
        ("The pool's base_model is not given; this server has: a, b.", True),
        ("Every snip score of base_model.model.transformer.h.0.attn.c_attn.lora_A.weight is 0.", False),
        ("The fields my_base_model and base_models are not known.", False),
    ],
)
def test_a_flag_is_named_where_the_field_is_and_not_where_a_tensor_is_called_like_it(message, hinted):
    assert ("base_model is --base" in explain(InvalidParameter(message))) is hinted


def test_every_field_that_a_sentence_names_is_told_by_its_flag():
    told = explain(Incompatible("They cannot be mixed: raise max_width, or set mixing.assume_same_init."))
    assert "max_width is --max-width" in told
    assert "assume_same_init is --assume-same-init" in told
    assert "--base" not in told


def test_who_has_no_key_is_told_where_one_is_and_what_makes_more():
    told = explain(Unauthenticated("This needs a key."))
    assert told.startswith("Error: This needs a key.\n")
    assert all(hint in told for hint in ("--key", "SOUP_KEY", "admin.key", "soup keys create"))


@pytest.mark.parametrize(
    ("error", "lines"),
    [
        (
            Forbidden("What asks ends today: give 'expires_at'.", param="expires_at"),
            ["Error: What asks ends today: give 'expires_at'.", "On the command line expires_at is --expires."],
        ),
        (
            Unauthenticated("The Ray cluster at head:6379 refuses this token.", param="ray_token"),
            ["Error: The Ray cluster at head:6379 refuses this token."],
        ),
        (
            InvalidParameter("Two things: one.", problems=["one", "another"]),
            ["Error: Two things: one.", "  - another"],
        ),
    ],
    ids=["a flag and no other scopes", "no key of ours", "every problem once"],
)
def test_a_refusal_is_told_in_these_lines(error, lines):
    assert explain(error).splitlines() == lines


def test_codes():
    several: list[SoupError] = [Incompatible("no"), Busy("later")]
    assert [exit_code(one) for one in several] == [3, 1]
    for errors, code in ((several, 1), (several[:1], 3)):
        with pytest.raises(typer.Exit) as stopped:
            Failures(errors).end()
        assert stopped.value.exit_code == code
    Failures().end()


def test_a_package_that_is_missing_is_told_by_the_extra_that_brings_it():
    missing = ModuleNotFoundError("No module named 'torch'", name="torch.nn")
    assert not_installed("evaluate", missing) == (
        "Error: `soup evaluate` needs torch: pip install 'adaptersoup[train]'."
    )
    assert "'adaptersoup[client]'" in not_installed("ls", missing)


@pytest.mark.parametrize(("verb", "module"), [("serve", "service.nothing"), (None, "torch")])
def test_what_no_extra_brings_is_a_bug_and_stays_one(verb, module):
    with pytest.raises(ModuleNotFoundError):
        not_installed(verb, ModuleNotFoundError("No module", name=module))
