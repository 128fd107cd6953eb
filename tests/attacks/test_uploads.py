"""Uploads in parts that are another key's, begin elsewhere, are too long, or become other bytes than they said."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.attacks.attack import Attack, Outcome, each
from tests.attacks.target import Target, digest_of

UPLOADS = "/v1/blobs/uploads"
DATA = b"0123456789"


def opened(target: Target, **body: Any) -> str:
    """The path of an upload of the admin's that holds ten bytes."""
    for upload_row in target.world.client.get(UPLOADS).json()["data"]:  # of the attacks before
        target.world.client.delete(f"{UPLOADS}/{upload_row['id']}")
    answer = target.world.client.post(UPLOADS, json=body or None)
    assert answer.status_code == 202, answer.text
    path = str(answer.headers["location"])
    assert target.world.client.patch(path, content=DATA, headers={"content-range": "0-9"}).status_code == 202
    return path


def upload(
    name: str,
    tries: str,
    method: str,
    *,
    status: int,
    code: str,
    says: str,
    key: str | None = None,
    says_at_first: dict[str, Any] | None = None,
    **request: Any,
) -> Attack:
    """A request for an upload of the admin's that is under way."""

    def strike(target: Target) -> Outcome:
        return target.ask(method, target.prepared, key=key, **request)

    return Attack(name, tries, status, code, says, strike, lambda target: opened(target, **(says_at_first or {})))


def part_upload(name: str, tries: str, span: str, data: bytes = b"x", **expected: Any) -> Attack:
    """A part with a range."""
    expected = {"status": 400, "code": "invalid_parameter", "says": "", **expected}
    return upload(name, tries, "PATCH", content=data, headers={"content-range": span}, **expected)


def finish(name: str, tries: str, digest: str, **expected: Any) -> Attack:
    """An end as the blob of a digest."""
    expected = {"status": 400, "code": "invalid_name", "says": "64 lower-case hex digits", **expected}
    return upload(name, tries, "PUT", params={"digest": digest}, **expected)


def elsewhere(name: str, tries: str, path: str, method: str = "GET", **request: Any) -> Attack:
    """A request for an upload that is none."""
    return Attack(name, tries, 404, "not_found", "", lambda target: target.ask(method, path, **request))


def fill(count: int) -> Callable[[Target], object]:
    """So many uploads of the admin's that are under way."""

    def prepare(target: Target) -> None:
        opened(target)
        for _ in range(count - 1):
            assert target.world.client.post(UPLOADS).status_code == 202

    return prepare


WRONG = {"status": 416, "code": "wrong_offset"}
SAID = {"digest": digest_of(DATA + b"!"), "size": 11}
ATTACKS = (
    *(
        upload(
            f"another key's upload, {verb}",
            f"Reaches an upload of another key, to {verb} it.",
            method,
            status=404,
            code="not_found",
            says="",
            key="stranger",
            **request,
        )
        for verb, method, request in (
            ("ask for", "GET", {}),
            ("add to", "PATCH", {"content": b"x", "headers": {"content-range": "10-10"}}),
            ("finish", "PUT", {"params": {"digest": digest_of(DATA)}}),
            ("delete", "DELETE", {}),
        )
    ),
    upload(
        "upload of a reader",
        "Adds to an upload with a key that may only read.",
        "PATCH",
        status=403,
        code="forbidden",
        says="'write'",
        key="reader",
        content=b"x",
        headers={"content-range": "10-10"},
    ),
    part_upload("part that begins before the end", "Overwrites what was acknowledged.", "0-0", **WRONG),
    part_upload("part behind a gap", "Leaves a hole in a blob.", "11-11", **WRONG),
    part_upload("part far behind", "Has a file of megabytes made by one byte.", f"{2**22}-{2**22}", **WRONG),
    part_upload("part that is shorter than it says", "Has bytes counted that never came.", "10-19"),
    part_upload("part that is longer than it says", "Slips bytes in that no range names.", "10-10", b"xyz"),
    part_upload("part that ends before it begins", "Turns a range around.", "10-5"),
    part_upload("negative part", "Begins before the first byte.", "-1-0"),
    part_upload("part of 10^18 bytes", "Names an offset that overflows.", "10-" + "9" * 18),
    part_upload("two parts in one range", "Writes two places at once.", "10-10,20-20", b"xy"),
    part_upload("range of a download", "Sends the range of another header.", "bytes=10-10"),
    part_upload("range with a digit of another script", "Has a digit of another script read.", "10-1\u0660".encode()),
    upload(
        "part without a range",
        "Has the server guess where a part goes.",
        "PATCH",
        status=400,
        code="invalid_parameter",
        says="Content-Range",
        content=b"x",
    ),
    upload(
        "part beyond the largest blob",
        "Fills the disk by a part that is larger than any blob.",
        "PATCH",
        status=413,
        code="too_large",
        says="SOUP_MAX_BLOB_BYTES",
        content=b"x",
        headers={"content-range": f"10-{9 * 2**20}", "content-length": str(9 * 2**20 - 9)},
    ),
    part_upload(
        "part beyond what was said",
        "Adds more than was said when the upload was opened.",
        "10-12",
        b"!!!",
        says_at_first=SAID,
    ),
    finish(
        "finish as other bytes",
        "Stores bytes under a digest that is not theirs.",
        digest_of(b"other"),
        status=400,
        code="invalid_parameter",
        says="",
        says_at_first=SAID,
    ),
    finish(
        "finish before the end",
        "Has half of a blob stored as all of it.",
        SAID["digest"],
        status=400,
        code="invalid_parameter",
        says="",
        says_at_first=SAID,
    ),
    finish("finish as a path", "Has an upload moved out of its folder.", "../../admin.key"),
    finish("finish as MD5", "Stores a blob by a digest that can be forged.", "md5:" + "a" * 32),
    finish("finish in capitals", "Stores a blob under a second name.", SAID["digest"].upper()),
    finish("finish behind a line break", "Slips a line break into the name of a file.", SAID["digest"] + "\n"),
    elsewhere("guessed upload", "Guesses the id of an upload.", f"{UPLOADS}/upload-{'0' * 24}"),
    elsewhere("upload that climbs", "Names a file above the uploads.", f"{UPLOADS}/..%2f..%2fadmin.key"),
    elsewhere("upload that is a file", "Names a file of the folder as an upload.", f"{UPLOADS}/soup.db", "DELETE"),
    elsewhere("wildcard for an upload", "Names all uploads at once.", f"{UPLOADS}/%25", "DELETE"),
    Attack(
        "upload of 2^60 bytes",
        "Announces more bytes than there are, to have room made.",
        400,
        "invalid_parameter",
        "",
        lambda target: target.post(UPLOADS, {"size": 2**60}),
    ),
    Attack(
        "upload beyond the largest blob",
        "Announces more than a blob may have.",
        413,
        "too_large",
        "",
        lambda target: target.post(UPLOADS, {"size": 9 * 2**20}),
    ),
    Attack(
        "flood of uploads",
        "Opens more uploads than a key may have unfinished.",
        429,
        "busy",
        "",
        lambda target: target.post(UPLOADS, {}),
        fill(4),
    ),
    Attack(
        "blob beyond the limit",
        "Uploads more than a blob may have, in pieces without a length.",
        413,
        "too_large",
        "",
        lambda target: target.ask("PUT", f"/v1/blobs/{digest_of(b'')}", content=(bytes(2**20) for _ in range(9))),
    ),
)


@each(ATTACKS)
def test_it_is_refused(target: Target, attack: Attack) -> None:
    target.withstands(attack)
