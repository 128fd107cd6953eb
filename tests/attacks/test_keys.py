"""Keys that are none, that work no more or for too little, and the roles that nobody may take."""

from __future__ import annotations

from typing import Any

import pytest

from registry.catalogue import keys as catalogue_keys
from service.access.keys import secret_sha256
from tests.attacks.attack import Attack, Outcome, each
from tests.attacks.target import Target

PATH = "/v1/adapters/acme/law"


def headed(name: str, tries: str, header: str | bytes, says: str = "Bearer sk-soup-...") -> Attack:
    """An Authorization header that is none."""

    def strike(target: Target) -> Outcome:
        written = header.format(admin=target.world.admin) if isinstance(header, str) else header
        return target.ask("GET", PATH, headers={"authorization": written})

    return Attack(name, tries, 401, "unauthenticated", says, strike)


def as_key(
    name: str, tries: str, key: str, method: str, path: str, *, status: int, code: str, says: str, **request: Any
) -> Attack:
    """A request with one of the target's keys."""
    return Attack(name, tries, status, code, says, lambda target: target.ask(method, path, key=key, **request))


def by_admin(
    name: str, tries: str, method: str, path: str, *, status: int, code: str, says: str, **request: Any
) -> Attack:
    """A request by an admin of the namespace `mallory`; `{key}` in the path is a key of `acme`."""

    def prepare(target: Target) -> tuple[str, str]:
        body = {"name": "theirs", "scopes": ["read"], "namespaces": ["acme"]}
        header = f"Bearer {target.world.key(['admin'], ['mallory'])}"
        return header, str(target.world.client.post("/v1/keys", json=body).json()["id"])

    def strike(target: Target) -> Outcome:
        header, key = target.prepared
        return target.ask(method, path.format(key=key), headers={"authorization": header}, **request)

    return Attack(name, tries, status, code, says, strike, prepare)


def raw_key(name: str, tries: str, lines: str) -> Attack:
    """A request over a socket, whose header lines no client would write."""

    def strike(target: Target) -> Outcome:
        head = f"GET {PATH} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{lines.format(admin=target.world.admin)}\r\n"
        status, _, rest = target.raw(head.encode()).partition(b"\r\n")
        return Outcome.of(int(status.split()[1]), rest.partition(b"\r\n\r\n")[2])

    return Attack(name, tries, 401, "unauthenticated", "Bearer sk-soup-...", strike)


NEW = {"name": "k", "namespaces": ["mallory"], "scopes": ["read"]}
ATTACKS = (
    headed("no key", "Asks without a key.", ""),
    headed("scheme alone", "Sends the word Bearer and nothing behind it.", "Bearer"),
    headed("null for a key", "Sends what a script prints for a key that is not set.", "Bearer null"),
    headed("password", "Sends a name and a password.", "Basic YWRtaW46YWRtaW4="),
    headed("the key as another scheme", "Sends the right secret under the scheme of passwords.", "Basic {admin}"),
    headed("the key alone", "Sends the right secret without a scheme.", "{admin}"),
    headed("two keys", "Sends two keys in one header, one of them right.", "Bearer {admin}, Bearer {admin}"),
    headed("a key and more", "Hides the right secret in a longer one.", "Bearer {admin}A"),
    headed("key in quotes", "Has quotes taken away around a key.", 'Bearer "{admin}"'),
    headed("guessed key", "Guesses a key of the right form.", "Bearer sk-soup-" + "0" * 43, "unknown or revoked"),
    headed(
        "hash for a key",
        "Sends what the database has of a key in the place of the key.",
        "Bearer sk-soup-" + secret_sha256("x")[:43],
        "unknown or revoked",
    ),
    headed(
        "letters of another alphabet",
        "Sends a key whose letters only look right.",
        "Bearer sk-soup-\u0430".encode() + b"A" * 42,
    ),
    headed("wildcard for a key", "Has a key searched for by a pattern.", "Bearer sk-soup-" + "%" * 43),
    headed("statement for a key", "Has a statement run by the search for a key.", "Bearer ' OR 1=1 --"),
    raw_key(
        "key folded into two lines",
        "Breaks the header into two lines, as old clients did.",
        "authorization: Bearer\r\n nothing\r\n",
    ),
    raw_key(
        "two headers, the first empty",
        "Sends an empty header first and the right one second.",
        "authorization:\r\nauthorization: Bearer {admin}\r\n",
    ),
    raw_key(
        "header with an underscore",
        "Spells the header as some proxies turn into the right one.",
        "authorization_: Bearer {admin}\r\n",
    ),
    raw_key(
        "key in a cookie",
        "Sends the right key where a page of another origin would have it sent.",
        "cookie: authorization=Bearer {admin}\r\n",
    ),
    Attack(
        "key in the address",
        "Sends the right key where logs and histories keep it.",
        401,
        "unauthenticated",
        "",
        lambda target: target.ask("GET", f"{PATH}?access_token={target.world.admin}", headers={"authorization": ""}),
    ),
    Attack(
        "encoded path",
        "Reaches a route by another spelling of its path, past what is public.",
        401,
        "unauthenticated",
        "",
        lambda target: target.ask("GET", "/healthz/%2e%2e/v1/keys", headers={"authorization": ""}),
    ),
    Attack(
        "doubled slash",
        "Reaches a route by a path with an empty part.",
        401,
        "unauthenticated",
        "",
        lambda target: target.ask("GET", "//v1/keys", headers={"authorization": ""}),
    ),
    Attack(
        "another method on a public path",
        "Sends a body to a path that needs no key to be read.",
        401,
        "unauthenticated",
        "",
        lambda target: target.ask("POST", "/healthz", headers={"authorization": ""}, content=b"x" * 1000),
    ),
    Attack(
        "method that is overridden",
        "Has a read that is allowed turned into a deletion by a header.",
        200,
        "",
        '"ref":"acme/law@1"',
        lambda target: target.ask("GET", PATH, key="reader", headers={"x-http-method-override": "DELETE"}),
    ),
    as_key(
        "revoked key",
        "Goes on with a key that was revoked.",
        "revoked",
        "GET",
        PATH,
        status=401,
        code="unauthenticated",
        says="unknown or revoked",
    ),
    as_key(
        "expired key",
        "Goes on with a key after its end.",
        "expired",
        "GET",
        PATH,
        status=401,
        code="unauthenticated",
        says="expired on",
    ),
    as_key(
        "reader that deletes",
        "Retires an adapter with a key that may read.",
        "reader",
        "DELETE",
        PATH,
        status=403,
        code="forbidden",
        says="'write'",
    ),
    as_key(
        "reader that infers",
        "Uses the engine with a key that may read.",
        "reader",
        "POST",
        "/v1/completions",
        status=403,
        code="forbidden",
        says="'infer'",
        json={"model": "acme/law", "prompt": "a"},
    ),
    as_key(
        "reader that makes keys",
        "Makes itself an admin key.",
        "reader",
        "POST",
        "/v1/keys",
        status=403,
        code="forbidden",
        says="'admin'",
        json={**NEW, "scopes": ["admin"]},
    ),
    as_key(
        "stranger that reads",
        "Reads an adapter of another namespace.",
        "stranger",
        "GET",
        PATH,
        status=404,
        code="not_found",
        says="",
    ),
    as_key(
        "stranger that deletes",
        "Retires an adapter of another namespace.",
        "stranger",
        "DELETE",
        PATH,
        status=404,
        code="not_found",
        says="",
    ),
    as_key(
        "stranger that pushes",
        "Pushes a version of another namespace's adapter.",
        "stranger",
        "PUT",
        PATH + "/aliases/prod",
        status=404,
        code="not_found",
        says="",
        json={"version": 1},
    ),
    as_key(
        "stranger that asks",
        "Has another namespace's adapter write.",
        "stranger",
        "POST",
        "/v1/completions",
        status=404,
        code="not_found",
        says="",
        json={"model": "acme/law", "prompt": "a"},
    ),
    Attack(
        "stranger by a digest",
        "Reads another namespace's weights by their digest.",
        404,
        "not_found",
        "",
        lambda target: target.ask("GET", f"/v1/blobs/{target.victim['weights_blob']}", key="stranger"),
    ),
    Attack(
        "stranger in another's pool",
        "Has adapters chosen from a namespace that the key may not read.",
        403,
        "forbidden",
        "",
        lambda target: target.post(
            "/v1/select",
            {"sample": {"texts": ["a b c d"] * 30}, "wait": 0, "pool": {"namespaces": ["acme"]}},
            key="stranger",
        ),
    ),
    by_admin(
        "admin of one namespace makes one of all",
        "Makes a key that sees more than itself.",
        "POST",
        "/v1/keys",
        status=403,
        code="forbidden",
        says="",
        json={**NEW, "namespaces": None},
    ),
    by_admin(
        "admin makes a key of another namespace",
        "Makes a key of another namespace.",
        "POST",
        "/v1/keys",
        status=403,
        code="forbidden",
        says="",
        json={**NEW, "namespaces": ["acme"]},
    ),
    by_admin(
        "admin revokes a key of another namespace",
        "Locks another namespace out.",
        "DELETE",
        "/v1/keys/{key}",
        status=404,
        code="not_found",
        says="",
    ),
    by_admin(
        "admin rotates a key of another namespace",
        "Takes the secret of another namespace's key.",
        "POST",
        "/v1/keys/{key}/rotate",
        status=404,
        code="not_found",
        says="",
    ),
    by_admin(
        "admin changes a key of another namespace",
        "Adds its own namespace to another's key.",
        "PATCH",
        "/v1/keys/{key}",
        status=404,
        code="not_found",
        says="",
        json={"scopes": ["admin"]},
    ),
    by_admin(
        "admin changes another namespace",
        "Allows training in another namespace.",
        "PATCH",
        "/v1/namespaces/acme",
        status=404,
        code="not_found",
        says="",
        json={"tuning": "allow"},
    ),
    by_admin(
        "admin limits another namespace",
        "Takes another namespace's tokens away.",
        "PATCH",
        "/v1/namespaces/acme/limits",
        status=404,
        code="not_found",
        says="",
        json={"tokens_per_minute": 1},
    ),
    by_admin(
        "admin purges in another namespace",
        "Removes another namespace's adapter for good.",
        "POST",
        PATH + "@1/purge",
        status=404,
        code="not_found",
        says="",
    ),
    by_admin(
        "admin reads the server's metrics",
        "Reads what all namespaces do together.",
        "GET",
        "/metrics",
        status=403,
        code="forbidden",
        says="",
    ),
    Attack(
        "last admin goes",
        "Has the last admin key revoke itself, so that nobody can make another.",
        409,
        "conflict",
        "",
        lambda target: target.ask("DELETE", f"/v1/keys/{target.prepared}"),
        lambda target: next(
            key["id"] for key in target.world.client.get("/v1/keys").json()["data"] if key["name"] == "admin"
        ),
    ),
)


@each(ATTACKS)
def test_it_is_refused(target: Target, attack: Attack) -> None:
    target.withstands(attack)


def test_a_secret_is_looked_up_by_its_hash_and_compared_with_nothing(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """How long the lookup of a guess takes depends on the guess's hash, which tells nothing about any secret."""
    hashes: list[str] = []
    real = catalogue_keys.Keys.by_secret

    def recorded_lookup(self: Any, hashed: str) -> Any:
        hashes.append(hashed)
        return real(self, hashed)

    monkeypatch.setattr(catalogue_keys.Keys, "by_secret", recorded_lookup)
    guess = target.world.admin[:-1] + ("A" if target.world.admin[-1] != "A" else "B")
    assert target.ask("GET", PATH, headers={"authorization": f"Bearer {guess}"}).status == 401
    assert hashes == [secret_sha256(guess)]
