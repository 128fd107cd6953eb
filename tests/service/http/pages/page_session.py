"""A browser without a screen: signs in, keeps cookies, sends forms with the token that the page carries."""

from __future__ import annotations

import re
from functools import cached_property
from html import unescape
from html.parser import HTMLParser
from typing import Any
from xml.etree import ElementTree

from fastapi.testclient import TestClient
from httpx2 import Response

from tests.service.servers import World

HOSTILE = '"><script>alert(1)</script> {{7*7777}}'
TOKEN = re.compile(r'name="form" value="([0-9a-f]{64})"')


class PageSession:
    """A person at the pages, without running their scripts; redirects are not followed.

    Nothing in a page that it gets may run or style something but files of ours, whatever people wrote into it.
    """

    def __init__(self, world: World, secret: str | None = None, **client: Any) -> None:
        self.client = TestClient(world.app, follow_redirects=False, **client)
        self.client.portal = world.client.portal  # the event loop of the other client, not a new one for each request
        if secret is not None:
            answer = self.sign_in(secret)
            assert answer.status_code == 303, answer.text

    def get(self, path: str, **options: Any) -> Response:
        return _inactive(self.client.get(path, **options))

    def page(self, path: str) -> str:
        """A page that has to be there."""
        answer = self.get(path)
        assert answer.status_code == 200, (path, answer.status_code, answer.headers.get("location"))
        return answer.text

    def token(self, path: str) -> str:
        """The token of the forms of a page."""
        return TOKEN.findall(self.page(path))[0]

    @cached_property
    def form_token(self) -> str:
        """The token of all forms of this browser, for as long as its session lasts."""
        pages = (self.get(path).text for path in ("/jobs", "/sign-in"))  # the second where it may not see the first
        return next(token for page in pages for token in TOKEN.findall(page))

    def send(self, path: str, page: str, **fields: str) -> Response:
        """Send a form of `page` to `path`."""
        return _inactive(self.client.post(path, data={"form": self.token(page), **fields}))

    def plots(self, page: str) -> list[set[str]]:
        """The texts of every plot that a page shows, the same in light and dark."""
        texts = []
        pictures = [attributes for tag, attributes in elements(page) if tag in {"source", "img"}]
        dark = [attributes["srcset"] for attributes in pictures if "srcset" in attributes]
        light = [attributes["src"] for attributes in pictures if attributes.get("class") == "plot"]
        for pair in zip(light, dark, strict=True):
            answers = [self.get(address) for address in pair]
            assert [answer.headers["content-type"] for answer in answers] == ["image/svg+xml"] * 2
            read_texts = [
                {
                    "".join(element.itertext())
                    for element in ElementTree.fromstring(answer.text).iter()
                    if "}text" in element.tag
                }
                for answer in answers
            ]
            assert read_texts[0] == read_texts[1]
            assert answers[0].text != answers[1].text
            texts.append(read_texts[0])
        return texts

    def sign_in(self, secret: str, **fields: str) -> Response:
        return self.send("/sign-in", "/sign-in", key=secret, **fields)


def read(html: str) -> str:
    """The text of a page, without its markup."""
    return re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]+>", " ", html)))


def check_says(answer: Response, status: int, excerpt: str) -> None:
    """A page has a status and, without its markup, a text."""
    text = read(answer.text)
    assert (answer.status_code, excerpt in text) == (status, True), text


class _Elements(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))


def elements(html: str) -> list[tuple[str, dict[str, str]]]:
    """Every element of a page and its attributes, as a browser reads them."""
    parser = _Elements()
    parser.feed(html)
    return parser.elements


def active(html: str) -> list[str]:
    """Elements of a page that would run or style something, but for files of ours: there must be none."""
    active_tags = []
    for tag, attributes in elements(html):
        ours = tag == "script" and attributes.get("src", "").startswith("/assets/")
        wrong = [name for name in attributes if name.startswith("on") or name == "style"]
        leads = [attributes[name] for name in ("href", "src", "action") if name in attributes]
        away = [place for place in leads if not place.startswith(("/", "#", "?")) or place.startswith("//")]
        if tag in {"style", "iframe", "object", "embed", "base"} or (tag == "script" and not ours) or wrong or away:
            active_tags.append(f"{tag} {attributes}")
    return active_tags


def _inactive(answer: Response) -> Response:
    if answer.headers.get("content-type", "").startswith("text/html"):
        assert active(answer.text) == []
    return answer
