"""Tokens of an issuer: which are believed, what they bring, whose row they make, and what a flood of them costs."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from registry.catalogue import Database
from registry.errors import Forbidden, InvalidParameter, Unauthenticated, Unavailable
from service.access.identities import Identities, identities_of, identity_id
from service.access.key_watch import KeyWatch
from service.access.keys import Principal, authenticate
from service.access.oidc.issuer import LARGEST, MAX_AGE, REFRESH_AFTER, Issuer
from service.access.oidc.mapping import read_mapping
from service.access.oidc.tokens import Tokens
from service.settings import Settings
from tests.service.clock import Clock
from tests.service.little_issuer import DISCOVERY, MAPPING, LittleIssuer, little_issuer, public_jwk, signing_key

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def lasting() -> Iterator[LittleIssuer]:
    """One issuer whose keys stay as they are."""
    with little_issuer() as issuer:
        yield issuer


@pytest.fixture
def issuer() -> Iterator[LittleIssuer]:
    """An issuer of the test's own."""
    with little_issuer() as issuer:
        yield issuer


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def tokens(lasting: LittleIssuer, clock: Clock) -> Tokens:
    return tokens_of(lasting, clock)


def tokens_of(issuer: LittleIssuer, clock: Callable[[], float]) -> Tokens:
    return Tokens(Issuer(issuer.url, clock=clock), audiences=["other", "soup"], leeway=30)


def identities(issuer: LittleIssuer, database: Database, tmp_path: Path, **more: Any) -> Identities:
    named: dict[str, Any] = {"watch": KeyWatch(database), "max_identities": 10, **more}
    return Identities(tokens_of(issuer, Clock()), read_mapping(issuer.mapping(tmp_path)), **named)


def segment(value: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()


def forged(header: object, claims: object, sign: Callable[[bytes], bytes] = lambda _: b"") -> str:
    """A token put together by hand."""
    signed = f"{segment(header)}.{segment(claims)}"
    return f"{signed}.{base64.urlsafe_b64encode(sign(signed.encode())).rstrip(b'=').decode()}"


# --- which are believed ---------------------------------------------------------------------------


@pytest.mark.parametrize("kid", ["rsa", "ec", "ps", "ed"])
def test_a_token_of_each_kind_of_key_is_believed(issuer: LittleIssuer, clock: Clock, kid: str) -> None:
    issuer.new_key("ps", "PS384", named=False)
    issuer.new_key("ed", "EdDSA")
    assert tokens_of(issuer, clock).claims(issuer.token("law-team", kid=kid))["sub"] == "u-1"


def by_hmac(issuer: LittleIssuer) -> str:
    """Signed with the public key as if it were a secret, in each form that a library might take it in."""
    pem = issuer.keys["rsa"][0].public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    header = {"alg": "HS256", "kid": "rsa", "typ": "JWT"}
    return forged(header, issuer.claims("soup-admins"), lambda signed: hmac.digest(pem, signed, hashlib.sha256))


def by_a_stranger(issuer: LittleIssuer, **header: Any) -> str:
    """Signed by nobody's key, under a key id that there is."""
    stranger = signing_key("stranger", "RS256")
    named = {
        "kid": "rsa",
        **{name: value if value else public_jwk(stranger, "RS256") for name, value in header.items()},
    }
    return jwt.encode(issuer.claims("soup-admins"), stranger, algorithm="RS256", headers=named)


def changed(issuer: LittleIssuer) -> str:
    """Another's claims under a good signature."""
    header, _, signature = issuer.token("guests").split(".")
    return f"{header}.{segment(issuer.claims('soup-admins'))}.{signature}"


def soon(seconds: int) -> int:
    return int(time.time()) + seconds


HOSTILE: dict[str, tuple[Callable[[LittleIssuer], str], str]] = {
    "no signature": (lambda i: forged({"alg": "none", "kid": "rsa"}, i.claims("soup-admins")), "algorithm"),
    "none in capitals": (lambda i: forged({"alg": "NONE", "kid": "rsa"}, i.claims("soup-admins")), "algorithm"),
    "a public key as secret": (by_hmac, "algorithm"),
    "an algorithm that is a list": (lambda i: forged({"alg": ["RS256"], "kid": "rsa"}, i.claims()), "read|algorithm"),
    "no algorithm": (lambda i: forged({"kid": "rsa"}, i.claims()), "read|algorithm"),
    "a stranger's key": (by_a_stranger, "signature"),
    "a key in its header": (lambda i: by_a_stranger(i, jwk=None), "signature"),
    "another's claims": (changed, "signature"),
    "a key id that is no text": (lambda i: forged({"alg": "RS256", "kid": 5}, i.claims()), "read|kid"),
    "an unknown key id": (lambda i: i.token(header={"kid": "../rsa"}), "kid"),
    "a key of another kind": (lambda i: i.token(kid="rsa", header={"kid": "ec"}), "kid"),
    "another algorithm than the key's": (
        lambda i: jwt.encode(i.claims(), i.keys["rsa"][0], algorithm="RS512", headers={"kid": "rsa"}),
        "kid",
    ),
    "an extension that is critical": (lambda i: i.token(header={"crit": ["x"], "x": 1}), "read"),
    "a token of a logout": (lambda i: i.token(header={"typ": "logout+jwt"}), "type"),
    "expired": (lambda i: i.token(exp=soon(-31)), "expired"),
    "without an end": (lambda i: i.token(exp=None), "'exp'"),
    "an end that is no number": (lambda i: i.token(exp="never"), "read|exp"),
    "not yet valid": (lambda i: i.token(nbf=soon(60)), "not valid yet"),
    "issued tomorrow": (lambda i: i.token(iat=soon(86_400), nbf=None), "not valid yet"),
    "not issued": (lambda i: i.token(iat=None), "'iat'"),
    "for another": (lambda i: i.token(aud="billing"), "audience"),
    "for nobody": (lambda i: i.token(aud=None), "'aud'"),
    "for many others": (lambda i: i.token(aud=["billing", "sou"]), "audience"),
    "of another issuer": (lambda i: i.token(iss="https://evil.example"), "issuer"),
    "of an issuer that begins alike": (lambda i: i.token(iss=i.url + ".evil.example"), "issuer"),
    "of nobody": (lambda i: i.token(iss=None), "'iss'"),
    "about nobody": (lambda i: i.token(sub=None), "'sub'"),
    "about an empty name": (lambda i: i.token(sub=""), "'sub'"),
    "about a name with a NUL": (lambda i: i.token(sub="a\x00b"), "'sub'"),
    "about a long name": (lambda i: i.token(sub="a" * 256), "'sub'"),
    "too long": (lambda i: i.token(padding="x" * 16_384), "characters"),
    "deep": (lambda i: segment({"alg": "RS256"}) + ".." + "A" * 100, "kid|read"),
    "a header without end": (lambda i: base64.urlsafe_b64encode(b"[" * 9000).decode() + "..", "read"),
    "nothing": (lambda i: "..", "read"),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_what_is_not_to_be_believed_is_not(lasting: LittleIssuer, tokens: Tokens, kind: str) -> None:
    make_token, message = HOSTILE[kind]
    with pytest.raises(Unauthenticated, match=message):
        tokens.claims(make_token(lasting))
    assert tokens.claims(lasting.token())["sub"] == "u-1", "a good token is one still"


def test_a_token_without_a_key_id_is_believed_where_one_key_fits(issuer: LittleIssuer, clock: Clock) -> None:
    token = jwt.encode(issuer.claims(), issuer.keys["rsa"][0], algorithm="RS256")
    assert tokens_of(issuer, clock).claims(token)
    issuer.new_key("other", "RS256", named=False)
    with pytest.raises(Unauthenticated, match="names no key"):
        tokens_of(issuer, clock).claims(token)


def test_clocks_may_be_a_little_apart(lasting: LittleIssuer, tokens: Tokens) -> None:
    assert tokens.claims(lasting.token(exp=soon(-20), nbf=soon(20), iat=soon(20)))


def test_a_short_key_is_not_used(issuer: LittleIssuer, clock: Clock) -> None:
    short = rsa.generate_private_key(public_exponent=65537, key_size=1024)
    issuer.keys["short"] = short, "RS256"
    issuer.published.append({**public_jwk(short, "RS256"), "kid": "short"})
    with pytest.warns(jwt.InsecureKeyLengthWarning):  # PyJWT signs with it all the same
        token = issuer.token(kid="short")
    with pytest.raises(Unauthenticated):
        tokens_of(issuer, clock).claims(token)


# --- the issuer's keys ----------------------------------------------------------------------------


def test_a_flood_of_unknown_keys_asks_the_issuer_once_a_minute(issuer: LittleIssuer, clock: Clock) -> None:
    tokens = tokens_of(issuer, clock)
    tokens.claims(issuer.token())
    assert issuer.request_counts == {DISCOVERY: 1, "/keys": 1}
    for second in range(0, 121, 10):
        clock.now = float(second)
        with pytest.raises(Unauthenticated, match="kid"):
            tokens.claims(issuer.token(header={"kid": f"k{second}"}))
        tokens.claims(issuer.token())
    assert issuer.request_counts["/keys"] == 3  # at the start, after a minute, after two


def test_a_new_key_is_found_and_a_withdrawn_one_is_not_used_for_long(issuer: LittleIssuer, clock: Clock) -> None:
    tokens = tokens_of(issuer, clock)
    old = issuer.token()
    tokens.claims(old)
    issuer.new_key("next", "RS256")
    clock.now = 61.0
    tokens.claims(issuer.token(kid="next"))
    issuer.published = [published_key for published_key in issuer.published if published_key["kid"] != "rsa"]
    tokens.claims(old)
    clock.now += REFRESH_AFTER + 1
    with pytest.raises(Unauthenticated, match="kid"):
        tokens.claims(old)


def test_an_issuer_that_is_gone_is_trusted_for_a_day(
    issuer: LittleIssuer, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    tokens = tokens_of(issuer, clock)
    tokens.claims(issuer.token())
    issuer.answers[DISCOVERY] = (503, {}, b"")
    clock.now = MAX_AGE - 1
    tokens.claims(issuer.token())
    assert "answered 503" in caplog.text
    clock.now = MAX_AGE + 1
    with pytest.raises(Unavailable, match="cannot be fetched"):
        tokens.claims(issuer.token())
    issuer.answers.clear()
    clock.now += 60
    tokens.claims(issuer.token())


@pytest.mark.parametrize(
    ("path", "answer"),
    [
        (DISCOVERY, (302, {"location": "http://127.0.0.1:1/"}, b"")),
        (DISCOVERY, (200, {}, b'{"issuer": "https://other.example", "jwks_uri": "HERE/keys"}')),
        (DISCOVERY, (200, {}, b"[" * 100_000)),
        (DISCOVERY, (200, {}, b"{} {")),
        ("/keys", (200, {}, b'{"keys": {}}')),
        ("/keys", (200, {}, b'{"keys": [' + b"{}," * 100 + b"{}]}")),
        ("/keys", (200, {}, b" " * (LARGEST + 1))),
        ("/keys", (301, {"location": "/other"}, b"")),
    ],
)
def test_what_an_issuer_should_not_answer_is_no_key_set(
    issuer: LittleIssuer, clock: Clock, path: str, answer: tuple[int, dict[str, str], bytes]
) -> None:
    issuer.answers[path] = (*answer[:2], answer[2].replace(b"HERE", issuer.url.encode()))
    with pytest.raises(Unavailable):
        tokens_of(issuer, clock).claims(issuer.token())
    assert "/other" not in issuer.request_counts
    issuer.answers.clear()
    clock.now = 5.0
    tokens_of(issuer, clock).claims(issuer.token())


def test_keys_that_cannot_be_read_are_passed_over(issuer: LittleIssuer, clock: Clock) -> None:
    good = issuer.published[0]
    strange = [5, None, [], {}, {**good, "kid": 5}, {**good, "n": 5, "kid": "n"}, {**good, "n": "!", "kid": "b"}]
    issuer.published = [*strange, {"kid": "oct", "kty": "oct", "k": "AAAA", "alg": "HS256"}, good]  # type: ignore[list-item]
    tokens = tokens_of(issuer, clock)
    assert tokens.claims(issuer.token())
    for kid in ("n", "b", "oct"):
        with pytest.raises(Unauthenticated, match=r"kid|cannot be used|signature"):
            tokens.claims(issuer.token(header={"kid": kid}))


@pytest.mark.parametrize(
    "where", ["http://keys.example/", "file:///etc/passwd", 5, "https:///keys", "https://a b/", "https://[::1"]
)
def test_a_key_set_elsewhere_is_fetched_over_https_alone(issuer: LittleIssuer, clock: Clock, where: object) -> None:
    issuer.answers[DISCOVERY] = (200, {}, json.dumps({"issuer": issuer.url, "jwks_uri": where}).encode())
    with pytest.raises(Unavailable):
        tokens_of(issuer, clock).claims(issuer.token())


# --- what they bring ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("roles", "expected"),
    [
        ((), None),
        (("somebody", "LAW-TEAM"), None),
        (("law-team",), (frozenset({"read", "write", "infer"}), ("law",))),
        (("med-team", "law-team"), (frozenset({"read", "write", "infer"}), ("law", "med"))),
        (("law-team", "guests"), (frozenset({"read", "write", "infer"}), ("law",))),  # no write in `public`
        (("guests",), (frozenset({"infer"}), ("law", "public"))),
        (("guests", "soup-admins"), (frozenset({"admin"}), None)),
    ],
)
def test_grants_never_add_up_to_more_than_one_gives(
    lasting: LittleIssuer, tmp_path: Path, roles: tuple[str, ...], expected: tuple[frozenset[str], Any] | None
) -> None:
    rights = read_mapping(lasting.mapping(tmp_path)).rights(lasting.claims(*roles))
    assert (None if rights is None else (rights.scopes, rights.namespaces)) == expected


@pytest.mark.parametrize(
    ("claims", "granted"),
    [
        ({"https://example.com/roles": ["a"]}, True),
        ({"https://example": {"com/roles": ["a"]}}, True),
        ({"https://example.com/roles": "a"}, True),
        ({"https://example.com/roles": "b a"}, False),
        ({"https://example.com/roles": [["a"], {"a": 1}, None, 5]}, False),
        ({"https://example.com/roles": {"a": True}}, False),
        ({"scope": "openid read:soup"}, True),
        ({"scope": "read:soup2"}, False),
        ({}, False),
    ],
)
def test_values_are_found_wherever_an_issuer_has_them(tmp_path: Path, claims: dict[str, Any], granted: bool) -> None:
    grant = '[[grants]]\nvalues = ["a"]\nscopes = ["read"]\nnamespaces = ["law"]\n'
    path = tmp_path / "mapping.toml"
    path.write_text(
        'claim = "https://example.com/roles"\n' + grant + grant.replace('"a"', '"read:soup"') + 'claim = "scope"\n'
    )
    assert (read_mapping(path).rights({"sub": "u-1", **claims}) is not None) == granted


@pytest.mark.parametrize(
    ("old_text", "new_text", "message"),
    [
        ('"admin"', '"root"', "grants.1.scopes.1: .*'read'"),
        ('namespaces = "all"', 'namespaces = "law"', 'grants.1.namespaces: .*write a list of namespaces, or "all"'),
        ('["law"]', "[]", "sees nothing"),
        ('["law"]', '["Law"]', "grants.2.namespaces.1: must have 1 to 64 of"),
        ('["law"]', '["base"]', "'base' is reserved"),
        ('values = ["guests"]', "values = []", "grants.4.values"),
        ('values = ["guests"]', 'value = ["guests"]', "grants.4.value"),
        ("[[grants]]", "[[grant]]", "grant"),
        ("claim =", "claim", "cannot be read"),
    ],
)
def test_a_mapping_that_is_wrong_is_refused_with_its_place(
    tmp_path: Path, old_text: str, new_text: str, message: str
) -> None:
    path = tmp_path / "mapping.toml"
    assert old_text in MAPPING
    path.write_text(MAPPING.replace(old_text, new_text))
    with pytest.raises(InvalidParameter, match=message):
        read_mapping(path)


# --- whose row they make --------------------------------------------------------------------------


def test_a_caller_has_one_row_which_keeps_what_the_last_token_brought(
    lasting: LittleIssuer, database: Database, tmp_path: Path
) -> None:
    clock, watch = Clock(), KeyWatch(database)
    issuer_identities = identities(lasting, database, tmp_path, watch=watch, clock=clock)
    end = soon(300)

    def asks(token: str) -> Principal:
        return authenticate(database, f"Bearer {token}", watch=watch, tokens=issuer_identities)

    principal = asks(lasting.token("law-team", exp=end))
    id = identity_id(lasting.url, "u-1")
    scopes = frozenset({"read", "write", "infer"})
    assert principal == Principal(id, ("law",), scopes, datetime.fromtimestamp(end, UTC))
    assert asks(lasting.token("guests")).scopes == {"infer"}, "the token that asks decides"
    with database.read() as catalogue:
        (row,) = catalogue.keys.list()
        assert (row.name, row.namespaces, row.scopes) == ("ada", ("law", "public"), {"infer"})
        assert (row.issuer, row.subject, row.prefix, row.expires_at) == (lasting.url, "u-1", "oidc", None)
    asks(lasting.token("law-team"))
    with database.read() as catalogue:
        assert catalogue.keys.get(id).scopes == {"infer"}, "two tokens by turns do not write at each request"
    clock.now = 61.0
    asks(lasting.token("law-team", preferred_username="Ada \x1b[31m\u202eL."))
    watch.write()
    with database.read() as catalogue:
        row = catalogue.keys.get(id)
        assert (row.scopes, row.name) == (scopes, "Ada [31mL.")
        assert row.last_used_at is not None
        actions = [entry.action for entry in catalogue.audit.list(None, limit=10).rows]
        assert actions == ["key.change", "key.change", "key.create"]
        assert catalogue.keys.counts(datetime.now(UTC))["identity"] == 1


def test_a_known_caller_is_served_while_nothing_can_be_written(
    lasting: LittleIssuer, database: Database, tmp_path: Path
) -> None:
    hasty = Database(database.engine.url.render_as_string(hide_password=False), busy_seconds=0)
    try:
        issuer_identities = identities(lasting, hasty, tmp_path)
        first = issuer_identities.principal(lasting.token("law-team"))
        with database.write():
            second = issuer_identities.principal(lasting.token("soup-admins"))
        assert (second.key_id, second.scopes) == (first.key_id, {"admin"})
        with database.read() as catalogue:
            assert catalogue.keys.get(first.key_id).scopes == first.scopes
    finally:
        hasty.close()


def test_an_identity_is_no_admin_that_stays(lasting: LittleIssuer, database: Database, tmp_path: Path) -> None:
    assert identities(lasting, database, tmp_path).principal(lasting.token("soup-admins")).has("admin")
    with database.read() as catalogue:
        assert catalogue.keys.admins() == []


def test_tokens_that_bring_nothing_or_are_refused_make_no_row(
    lasting: LittleIssuer, database: Database, tmp_path: Path
) -> None:
    watch = KeyWatch(database)
    issuer_identities = identities(lasting, database, tmp_path, watch=watch, max_identities=1)
    with pytest.raises(Forbidden, match="has no scope"):
        issuer_identities.principal(lasting.token())
    for _ in range(3):
        with pytest.raises(Unauthenticated):
            issuer_identities.principal(lasting.token("law-team", exp=soon(-100)))
    with pytest.raises(Unauthenticated, match="valid time"):
        issuer_identities.principal(lasting.token("law-team", exp=10**15))
    with database.read() as catalogue:
        assert catalogue.keys.list() == []
    issuer_identities.principal(lasting.token("law-team"))
    with pytest.raises(Forbidden, match="knows 1 callers"):
        issuer_identities.principal(lasting.token("law-team", sub="u-2"))
    issuer_identities.principal(lasting.token("law-team"))
    watch.write()
    with database.read() as catalogue:
        refused, created = catalogue.audit.list(None, limit=10).rows
    assert (refused.action, refused.detail) == ("key.refuse", {"reason": "token", "count": 4})
    assert created.action == "key.create"


def test_a_token_is_nothing_to_a_server_that_takes_none(lasting: LittleIssuer, database: Database) -> None:
    with pytest.raises(Unauthenticated, match="must be 'Bearer sk-soup"):
        authenticate(database, f"Bearer {lasting.token('soup-admins')}", watch=KeyWatch(database))


# --- the settings ---------------------------------------------------------------------------------


def test_what_the_settings_ask_for(lasting: LittleIssuer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watch = KeyWatch(Database(f"sqlite:///{tmp_path / 'soup.db'}"))
    good = lasting.settings(tmp_path)
    assert identities_of(Settings(), watch) is None
    assert identities_of(Settings(**good), watch) is not None
    monkeypatch.setenv("SOUP_OIDC_AUDIENCE", "soup, other")
    assert Settings(oidc_issuer=lasting.url).oidc_audience == ("soup", "other")
    monkeypatch.delenv("SOUP_OIDC_AUDIENCE")
    for wrong, message in (
        ({"no_auth": True}, "drop SOUP_OIDC_ISSUER"),
        ({"oidc_audience": ()}, "needs SOUP_OIDC_AUDIENCE"),
        ({"oidc_mapping": None}, "needs SOUP_OIDC_AUDIENCE"),
        ({"oidc_mapping": tmp_path / "none"}, "cannot be read"),
        ({"oidc_issuer": "http://issuer.example"}, "https://"),
        ({"oidc_issuer": "https://issuer.example?tenant=a"}, "https://"),
        ({"oidc_issuer": "https://user:word@issuer.example"}, "https://"),
        ({"oidc_issuer": "https://[::1"}, "https://"),
    ):
        with pytest.raises(InvalidParameter, match=message):
            identities_of(Settings(**{**good, **wrong}), watch)
    for missing in ("jwt", "service.access.oidc.tokens"):
        monkeypatch.delitem(sys.modules, "service.access.oidc.tokens", raising=False)
        monkeypatch.setitem(sys.modules, missing, None)
        with pytest.raises(Unavailable, match=r"pip install 'adaptersoup\[oidc\]'"):
            identities_of(Settings(**good), watch)
