"""Regular expressions and templates of strangers, which would run code or never end."""

from __future__ import annotations

from registry.base_model import load_text
from registry.base_model.chat_template import render
from registry.formats import parse_card
from registry.spec import BaseEntry
from tests.attacks.attack import Attack, Outcome, each
from tests.attacks.target import Target

PEFT = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["c_attn"]}


def pattern(name: str, tries: str, source: str, says: str = "cannot be read") -> Attack:
    """A push of a LoRA with an expression for its ranks."""
    config = {**PEFT, "rank_pattern": {source: 4}}
    return Attack(
        name, tries, 400, "invalid_manifest", says, lambda target: target.push(config=None, peft_config=config)
    )


def templated(name: str, tries: str, **message: str) -> Attack:
    """A message with a template in it, which is text and nothing else: it comes out as it went in."""

    def strike(target: Target) -> Outcome:
        tokenizer = load_text(target.world.runtime.bases["tiny"].entry).tokenizer
        text = str(render(tokenizer, [{"role": "user", "content": "Hi", **message}]))
        body = {"model": "base/tiny", "max_tokens": 1, "messages": [{"role": "user", "content": "Hi", **message}]}
        answer = target.post("/v1/chat/completions", body)
        assert answer.status == 200, answer.text
        return Outcome(answer.status, "", "", text)

    return Attack(name, tries, 200, "", message["content"], strike)


def operators(name: str, tries: str, source: str) -> Attack:
    """A template that came with a base model, tried before anybody chats with it."""

    def strike(target: Target) -> Outcome:
        folder = str(target.world.runtime.bases["tiny"].entry.source)
        entry = BaseEntry(id="tiny", source=folder, chat_template=source.replace("CANARY", str(target.canary)))
        return Outcome.by(lambda: load_text(entry))

    return Attack(name, tries, 503, "unavailable", "its chat_template", strike)


def card(name: str, tries: str, matter: str) -> Attack:
    """The front matter of a card."""
    return Attack(
        name,
        tries,
        400,
        "invalid_manifest",
        "README.md",
        lambda _: Outcome.by(lambda: parse_card(f"---\n{matter}\n---\ntext")),
    )


ATTACKS = (
    pattern("look-ahead", "Has an expression matched that needs going back.", "(?=a)b", ""),
    pattern("backreference", "Has an expression matched whose time grows without bounds.", r"(a)\\1", ""),
    pattern("repetition of repetitions", "Has an expression grow to millions of states.", "((a{64}){64}){64}", ""),
    pattern("expression of 3,000 letters", "Has a long expression compiled.", "a" * 3000, ""),
    pattern("expression that is none", "Has an open bracket end the parser.", "(", ""),
    operators(
        "template with an import",
        "Imports a module by the class of a text.",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}{% for m in messages %}{{ m.content }}{% endfor %}",
    ),
    operators(
        "template that opens a file",
        "Opens a file of the server.",
        "{{ cycler.__init__.__globals__.os.popen('cat CANARY/secret.txt').read() }}{{ messages[0].content }}",
    ),
    operators(
        "template that includes a file",
        "Includes a file of the server.",
        "{% include 'CANARY/secret.txt' %}{{ messages[0].content }}",
    ),
    operators(
        "template of endless rows",
        "Has a range of 10^12 rows made.",
        "{% for i in range(1000000000000) %}x{% endfor %}{{ messages[0].content }}",
    ),
    operators(
        "template that leaves the message out",
        "Answers without having read what was asked.",
        "{% for m in messages %}{{ m.role }}{% endfor %}",
    ),
    templated("template in a message", "Has a message evaluated as a template.", content="{{7*7}}{% endfor %}"),
    card(
        "object of YAML",
        "Has a function called by a tag of YAML.",
        "metadata:\n  k: !!python/object/apply:os.system [exit 1]",
    ),
    card(
        "billion laughs",
        "Has a few lines become a billion values.",
        "metadata:\n  a: &a [x, x]\n  b: &b [*a, *a]\n  c: [*b, *b]",
    ),
    card("deep front matter", "Exhausts the stack of the parser of YAML.", "tags: " + "[" * 9000 + "x" + "]" * 9000),
    card("long front matter", "Keeps the parser of YAML busy.", "tags:\n" + "- a\n" * 6000),
)


@each(ATTACKS)
def test_it_is_refused(target: Target, attack: Attack) -> None:
    target.withstands(attack)
