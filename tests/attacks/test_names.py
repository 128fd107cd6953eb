"""Names, refs and digests that are meant to leave their folder, to look like another's, or to name something else."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from tests.attacks.attack import Attack, Outcome, each
from tests.attacks.target import Target, digest_of
from tests.attacks.watched import CANARY

LATIN_LAW = "acme/l\u0430w"
"""With a Cyrillic letter for the Latin one."""


def pushed(name: str, tries: str, ref: str, says: str = "not valid", code: str = "invalid_name") -> Attack:
    """A push under a name."""
    return Attack(name, tries, 400, code, says, lambda target: target.push(name=ref))


def path_request(
    name: str, tries: str, path: str, *, status: int, code: str, says: str, method: str = "GET", **request: Any
) -> Attack:
    """A request for a path as it stands."""
    return Attack(name, tries, status, code, says, lambda target: target.ask(method, path, **request))


def model(name: str, tries: str, ref: str, *, says: str, status: int = 400, code: str = "invalid_name") -> Attack:
    """A completion by a model that is none."""

    def strike(target: Target) -> Outcome:
        return target.post("/v1/completions", {"model": ref.format(canary=target.canary), "prompt": "a"})

    return Attack(name, tries, status, code, says, strike)


def blob(name: str, tries: str, digest: str, status: int = 400, code: str = "invalid_name") -> tuple[Attack, ...]:
    """Both a read and a write of a blob under a name."""
    says = {400: "64 lower-case hex digits", 404: "", 405: ""}[status]

    def strike(method: str, **request: Any) -> Any:
        return lambda target: target.ask(method, f"/v1/blobs/{digest}", **request)

    return (
        Attack(f"{name}, read", f"{tries} To read it.", status, code, says, strike("GET")),
        Attack(f"{name}, written", f"{tries} To write it.", status, code, says, strike("PUT", content=b"x")),
    )


HEX = "a" * 64
ATTACKS = (
    pushed("relative path", "Stores an adapter above the folder.", "../../etc/passwd"),
    pushed("path inside of a namespace", "Stores an adapter in another namespace by going up.", "acme/../other"),
    pushed("absolute path", "Stores an adapter at the root of the disk.", "/etc/cron.d"),
    pushed("encoded slash", "Hides a slash from the check, for whoever decodes it later.", "mallory/a%2fb"),
    pushed("doubly encoded slash", "Hides a slash twice.", "mallory/a%252fb"),
    pushed("backslash", "Goes up as some systems write it.", "mallory/..\\x"),
    pushed("device", "Names a device of another system.", "mallory/CON"),
    pushed("NUL in a name", "Ends the name early for whoever reads it in C.", "mallory/a\x00.txt"),
    pushed("line break in a name", "Forges a second line in lists and logs.", "mallory/a\nacme/law"),
    pushed("line break at the end", "Slips a line break past a pattern that ends with '$'.", "mallory/a\n"),
    pushed("Cyrillic letter", "Looks like another namespace's adapter with a letter of another alphabet.", LATIN_LAW),
    pushed("full-width letters", "Looks like an adapter to whoever normalises it.", "ａｃｍｅ/law"),
    pushed("digit of another script", "Has a digit of another script read as one.", "mallory/a\u0663"),
    pushed("zero-width space", "Looks like a name that is taken.", "acme/la\u200bw"),
    pushed("right to left", "Shows its end first.", "mallory/\u202ewal"),
    pushed("capitals", "Is another name than the lower-case one only where case counts.", "acme/Law"),
    pushed("hidden name", "Begins with a point, as hidden files do.", "mallory/.ssh"),
    pushed("option", "Begins with a dash, as an option does.", "mallory/-rf"),
    pushed("version in the name", "Takes the version of somebody else's adapter.", "mallory/law@1"),
    pushed("65 characters", "Is longer than a name may be.", "mallory/" + "a" * 65),
    pushed("no namespace", "Belongs to nobody.", "law", "has no namespace"),
    pushed("three parts", "Has a part too many.", "acme/law/x"),
    *(
        pushed(
            f"namespace {reserved}",
            f"Takes the namespace {reserved}, which paths of the server begin with.",
            f"{reserved}/x",
            "reserved",
        )
        for reserved in ("base", "v1", "api", "docs", "static", "ui", "models", "adapters")
    ),
    path_request(
        "path that climbs",
        "Asks for a file above the one that is served.",
        "/v1/adapters/acme/law/files/..%2f..%2fadmin.key",
        status=404,
        code="not_found",
        says="",
    ),
    path_request(
        "file that is not one",
        "Asks for the admin's key as a file of an adapter.",
        "/v1/adapters/acme/law/files/admin.key",
        status=404,
        code="not_found",
        says="",
    ),
    path_request(
        "page that climbs",
        "Asks for a file beside those of the documentation.",
        "/static/..%2f..%2fkeys.py",
        status=404,
        code="not_found",
        says="",
    ),
    path_request(
        "page by an absolute path",
        "Asks for a file of the system as one of the documentation.",
        "/static/%2fetc%2fpasswd",
        status=404,
        code="not_found",
        says="",
    ),
    path_request(
        "alias of digits",
        "Names an alias as if it were a version.",
        "/v1/adapters/acme/law/aliases/12",
        status=400,
        code="invalid_name",
        says="all digits",
        method="PUT",
        json={"version": 1},
    ),
    path_request(
        "alias that climbs",
        "Names an alias with a path.",
        "/v1/adapters/acme/law/aliases/" + quote("../x", safe=""),
        status=404,
        code="not_found",
        says="",
        method="PUT",
        json={"version": 1},
    ),
    path_request(
        "version 2^63",
        "Asks for a version that no database has room for.",
        f"/v1/adapters/acme/law@{2**63}",
        status=400,
        code="invalid_name",
        says="",
    ),
    path_request(
        "version 0",
        "Asks for the version before the first.",
        "/v1/adapters/acme/law@0",
        status=400,
        code="invalid_name",
        says="",
    ),
    path_request(
        "wildcard",
        "Asks for whatever matches.",
        "/v1/adapters/acme/%25",
        status=400,
        code="invalid_name",
        says="not valid",
    ),
    path_request(
        "statement",
        "Has a statement of SQL run by a filter.",
        "/v1/adapters?cursor=" + quote("1; DROP TABLE adapters"),
        status=400,
        code="invalid_parameter",
        says="cursor",
    ),
    model("path for a model", "Has a folder of the server loaded as a model.", "{canary}", says="not valid"),
    model(
        "relative path for a model", "Has a folder of the server loaded as a model.", "../" + CANARY, says="not valid"
    ),
    model("file URL for a model", "Has a file loaded as a model.", "file://{canary}/secret.txt", says=""),
    model(
        "web address for a model", "Has the server fetch a model from an address.", "https://evil.example/x", says=""
    ),
    model(
        "metadata service for a model", "Has the server ask its own network.", "http://169.254.169.254/latest", says=""
    ),
    model(
        "hub repository for a model",
        "Has the server fetch what anybody may upload to a hub.",
        "evil/model",
        status=404,
        code="not_found",
        says="",
    ),
    model(
        "base model that is not allowed",
        "Has a model loaded that the operator did not name.",
        "base/evil",
        status=404,
        code="not_found",
        says="",
    ),
    model(
        "archive for a model",
        "Has an archive unpacked as a model.",
        "evil.tar.gz",
        says="",
        status=404,
        code="not_found",
    ),
    model("template for a model", "Has a name evaluated as a template.", "{{{{7*7}}}}/x", says="not valid"),
    model("shell for a model", "Has a name run by a shell.", "$(id)/x", says="not valid"),
    *blob("path for a digest", "Names a file above the blobs.", "..%2f..%2fadmin.key", 404, "not_found"),
    *blob("capitals in a digest", "Has one blob stored under two names.", "sha256:" + HEX.upper()),
    *blob("digest of 63 digits", "Leaves a digit out.", "sha256:" + HEX[:-1]),
    *blob("digest of 65 digits", "Adds a digit.", "sha256:" + HEX + "a"),
    *blob("digest of other letters", "Names a blob by letters that are no digits.", "sha256:" + "g" * 64),
    *blob("other algorithm", "Names a blob by a digest that can be forged.", "md5:" + "a" * 32),
    *blob("SHA-1", "Names a blob by a digest that has been forged.", "sha1:" + "a" * 40),
    *blob("line break behind a digest", "Slips a line break past a pattern that ends with '$'.", f"sha256:{HEX}%0A"),
    *blob("NUL in a digest", "Ends the path early for whoever reads it in C.", "sha256:" + "%00" * 64),
    *blob("full-width digits", "Names a blob by digits of another script.", "sha256:" + quote("\uff11" * 64)),
    Attack(
        "digest that a push claims",
        "Claims the weights of another namespace by their digest.",
        404,
        "not_found",
        "is not known",
        lambda target: target.push(
            files={"adapter_model.safetensors": {"digest": target.victim["weights_blob"]}}, key="stranger"
        ),
    ),
    Attack(
        "bytes of another digest",
        "Stores bytes under a digest that is not theirs.",
        400,
        "digest_mismatch",
        "",
        lambda target: target.ask("PUT", f"/v1/blobs/{digest_of(b'good')}", content=b"evil"),
    ),
    Attack(
        "bytes of a digest that is there",
        "Replaces stored bytes by others of the same name.",
        400,
        "digest_mismatch",
        "",
        lambda target: target.ask("PUT", f"/v1/blobs/{target.victim['weights_blob']}", content=b"evil"),
    ),
)


@each(ATTACKS)
def test_it_is_refused(target: Target, attack: Attack) -> None:
    target.withstands(attack)
