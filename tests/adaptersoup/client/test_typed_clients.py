"""`adaptersoup.Client` on a real server: values with all that it says; `AsyncClient`, its source, where it awaits."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import httpx2
import pytest
from pydantic import BaseModel

from adaptersoup import Adapter, AsyncClient, Client, Selection, Soup
from adaptersoup.client.client import SoupClient
from adaptersoup.values import Listed
from plots.style import to_svg
from registry.errors import InvalidManifest, InvalidParameter, Retired, Unavailable
from registry.formats import (
    CONFIG_FILE,
    SAMPLES_FILE,
    WEIGHTS_FILE,
    AdapterContents,
    read_directory,
    write_directory,
)
from registry.spec import Card, Provenance
from service.http.schemas.jobs import Progress
from tests.service.passages import WORDS, passages
from tests.service.scripted_server import Server, events, ok
from tests.service.servers import CONFIG, Live, adapter_weights

QUESTION = [{"role": "user", "content": "?"}]
CHUNK = {
    "id": "c",
    "created": 1,
    "model": "m",
    "system_fingerprint": "f",
    "object": "chat.completion.chunk",
    "choices": [{"index": 0, "delta": {"content": "Hi"}, "logprobs": None, "finish_reason": None}],
}
OTHERWISE = {"perplexity": "evaluate", "push_patiently": None, "result": None, "wait_embedded": None}
"""Methods of `SoupClient` that are called otherwise, or are no call of their own."""


@pytest.fixture(scope="module")
def typed(live: Live) -> Iterator[Client]:
    with Client(live.url, live.world.admin) as typed:
        yield typed


@pytest.fixture(scope="module")
def folders(live: Live, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("adapters")
    for seed, domain in enumerate(WORDS):
        contents = AdapterContents(
            config=CONFIG,
            domain=domain,
            weights=adapter_weights(live.world.runtime, seed=seed),
            base_model="tiny",
            provenance=Provenance(init_hash=f"sha256:{7:064x}", init_source="declared"),
            texts=passages(domain, 30),
        )
        write_directory(root / domain, contents)
    return root


@pytest.fixture(scope="module")
def stocked(typed: Client, folders: Path) -> str:
    """A namespace with an adapter for each domain."""
    for domain in WORDS:
        pushed = typed.push(folders / domain, name=f"typed/{domain}", tags=["v1"])
        if pushed.job:
            assert typed.wait_job(pushed.job).state == "succeeded"
    return "typed"


class Endless(httpx2.SyncByteStream, httpx2.AsyncByteStream):
    """An answer with the same chunk again and again, until it is closed."""

    closed = False

    @property
    def transport(self) -> httpx2.MockTransport:
        headers = {"content-type": "text/event-stream"}
        return httpx2.MockTransport(lambda _: httpx2.Response(200, stream=self, headers=headers))

    def __iter__(self) -> Iterator[bytes]:
        while True:
            yield events(("message", CHUNK)).content

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for chunk in self:
            yield chunk

    def close(self) -> None:
        self.closed = True

    async def aclose(self) -> None:
        self.closed = True


def holds(value: Any, raw: Any) -> bool:
    """True if a value has every field of a JSON value, with the same content."""
    if isinstance(value, BaseModel):
        value = value.model_dump(mode="json")
    if isinstance(raw, dict):
        return all(name in value and holds(value[name], field) for name, field in raw.items())
    if isinstance(raw, list):
        return len(value) == len(raw) and all(map(holds, value, raw))
    return bool(value == raw)


# --- stored ---------------------------------------------------------------------------------------


def test_what_was_pushed_is_listed_and_shown_with_all_that_the_server_says(
    typed: Client, stocked: str, client: SoupClient
) -> None:
    adapters = typed.adapters(namespace=stocked, kind="adapter")
    assert sorted(adapter.domain for adapter in adapters) == sorted(WORDS)
    whole = typed.adapter(adapters[0])
    assert isinstance(whole, Adapter)
    assert holds(whole, client.adapter(adapters[0].ref))
    assert holds(list(adapters), list(client.adapters(namespace=stocked, kind="adapter")))
    assert holds(typed.lineage(adapters[0].ref), client.lineage(adapters[0].ref))
    assert holds(typed.files(adapters[0].digest), client.files(adapters[0].digest))
    assert holds(typed.models(), client.models())


def test_a_folder_comes_back_as_it_was(typed: Client, stocked: str, folders: Path, tmp_path: Path) -> None:
    assert typed.pull(f"{stocked}/court", tmp_path / "court") == tmp_path / "court"
    assert read_directory(tmp_path / "court").config == CONFIG


def test_card_aliases_and_life_of_a_version(typed: Client, stocked: str, folders: Path) -> None:
    pushed = typed.push(folders / "code", name=f"{stocked}/changed", owner="us")
    ref = pushed.ref
    assert pushed.owner == "us"
    assert typed.update_adapter(ref, owner="them").owner == "them"
    assert [adapter.ref for adapter in typed.adapters(owner="them", namespace=stocked)] == [ref]
    assert typed.update_adapter(ref, owner="").owner is None
    assert typed.update_adapter(ref, card=Card(tags=("v2",))).card.tags == ("v2",)
    alias = typed.put_alias(f"{stocked}/changed", "prod", 1)
    assert (alias.alias, [row.ref for row in typed.aliases(ref)]) == ("prod", [ref])
    typed.delete_alias(f"{stocked}/changed", "prod")
    assert [adapter.ref for adapter in typed.delete_adapter(ref)] == [ref]
    assert typed.restore(ref).retired_at is None
    assert typed.purge(ref).adapter.ref == ref
    assert typed.collect(dry_run=True).dry_run
    with pytest.raises(Retired, match="purged"):
        typed.adapter(f"{stocked}/changed")


# --- soups ----------------------------------------------------------------------------------------


def test_a_selector_a_selection_and_a_soup_are_values_that_show_themselves(
    typed: Client, stocked: str, client: SoupClient
) -> None:
    pool = {"namespaces": [stocked]}
    fitted = typed.fit("cosine", pool=pool)
    assert fitted.domains == 3
    assert "cosine over 3 domains" in fitted._repr_html_()
    assert "cosine over 3 domains" in to_svg(fitted.plot())
    assert holds(typed.selector(fitted.id), client.selector(fitted.id))
    assert fitted.id in [selector.id for selector in typed.selectors()]
    chosen = typed.select(passages("court", 20, seed=1), pool=pool)
    assert isinstance(chosen, Selection)
    assert [row.domain for row in chosen.selection.selected] == ["court"]
    assert typed.nearest(passages("court", 3, seed=1), pool=pool).data[0].adapter.domain == "court"
    soup = typed.cook(passages("court", 20, seed=1), pool=pool, effort="instant")
    assert isinstance(soup, Soup)
    assert soup.verification is not None


def test_a_job_is_watched_and_its_soup_read(typed: Client, stocked: str) -> None:
    recipe = {"ingredients": [{"ref": f"{stocked}/court"}, {"ref": f"{stocked}/code", "weight": 3.0}]}
    begun = typed.begin_cook(recipe=recipe, mixing="average", name=f"{stocked}/mixed")
    updates = list(typed.watch(begun))
    assert all(isinstance(update, Progress) for update in updates[:-1])
    assert updates[-1].state == "succeeded"
    assert typed.soup_of(begun).model == f"{stocked}/mixed@1"
    assert typed.job(begun.id).state == typed.cancel_job(begun).state == "succeeded"
    assert begun.id in [job.id for job in typed.jobs(kind="cook")]
    with pytest.raises(InvalidParameter, match="not a cook"):
        typed.soup_of(next(iter(typed.jobs(kind="embed"))))
    assert typed.cook(recipe=recipe, mixing="average", name=f"{stocked}/mixed").cached


def test_the_soup_of_a_cook_that_fits_its_pool_first_is_read(typed: Client, stocked: str) -> None:
    begun = typed.begin_cook(
        passages("court", 20, seed=2), pool={"namespaces": [stocked], "tag": "v1"}, effort="instant"
    )
    assert begun.kind == "search"
    assert typed.soup_of(begun).object == "soup"


def test_what_is_asked_for_wrongly_never_leaves(typed: Client) -> None:
    for wrong in ("one text", [1, 2]):
        for call in (typed.cook, typed.select, lambda texts: typed.evaluate("base/tiny", texts)):
            with pytest.raises(InvalidParameter, match="a list of passages"):
                call(wrong)
    with pytest.raises(InvalidParameter, match="a list of texts"):
        typed.route("one text")
    with pytest.raises(InvalidParameter, match="efort"):
        typed.cook(["a"], efort="quick")


# --- inference ------------------------------------------------------------------------------------


def test_scores_and_text_whole_and_in_pieces(typed: Client, stocked: str) -> None:
    model, drawn = f"{stocked}/court", {"max_tokens": 6, "seed": 1}
    assert typed.evaluate(model, passages("court", 3), baseline="base/tiny").baseline.model == "base/tiny"
    whole = typed.complete(model, "0 1", **drawn)
    pieces = list(typed.stream(model, "0 1", **drawn))
    assert len(pieces) > 1
    text = "".join(piece.choices[0].text for piece in pieces)
    assert text == whole.choices[0].text == typed.generate(model, "0 1", **drawn)
    assert len(typed.embed("base/tiny", ["a", "b"]).data) == 2


def test_whoever_breaks_off_within_with_closes_the_answer() -> None:
    """The server then ends it."""
    answer = Endless()
    with Client("http://soup.test", transport=answer.transport) as typed:
        with typed.stream_chat("m", QUESTION) as chunks:
            next(chunks)
        assert answer.closed


def test_whoever_breaks_off_within_async_with_does_too() -> None:
    answer = Endless()

    async def broken_off() -> bool:
        async with AsyncClient("http://soup.test", transport=answer.transport) as client:
            async with client.stream_chat("m", QUESTION) as chunks:
                await anext(chunks)
            return answer.closed

    assert asyncio.run(broken_off())


class TestWrongArguments:
    """A client whose transport fails the test if a request is sent."""

    @pytest.fixture
    def client(self) -> Iterator[Client]:
        with Client("http://soup.test", transport=httpx2.MockTransport(pytest.fail)) as client:
            yield client

    @pytest.mark.parametrize(
        ("fields", "says"),
        [
            ({"tags": ["No Good"]}, "tags.0: must have 1 to 64"),
            ({"owner": "a\nb"}, "owner: must not hold the character"),
            ({"domain": "x" * 300}, "domain: must have at most 200"),
        ],
    )
    def test_of_a_push_are_a_manifest_that_is_refused(
        self, client: Client, tmp_path: Path, fields: dict[str, Any], says: str
    ) -> None:
        write_directory(tmp_path / "law", AdapterContents(config=CONFIG, domain="law", weights=b"w"))
        with pytest.raises(InvalidManifest, match=f"^what is pushed: {says}"):
            client.push(tmp_path / "law", name="team/law", **fields)

    @pytest.mark.parametrize(
        ("call", "says"),
        [
            (lambda client: client.push("law", name="team/law", tags="v2"), r"a list of tags, such as \['v2'\]"),
            (
                lambda client: client.create_key("guest", scopes=["infer"], namespaces="team"),
                r"a list of namespaces, such as \['team'\]",
            ),
        ],
        ids=["tags", "namespaces"],
    )
    def test_a_text_in_place_of_a_list_is_not_an_item_a_letter(
        self, client: Client, call: Callable[[Client], Any], says: str
    ) -> None:
        with pytest.raises(InvalidParameter, match=says):
            call(client)


@pytest.mark.parametrize("verb", ["chat", "stream_chat", "embed", "complete", "stream"])
def test_a_model_may_be_a_value(verb: str) -> None:
    models: list[str] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        models.append(json.loads(request.content)["model"])
        return httpx2.Response(503)

    value = Listed.model_construct(ref="team/law@1")
    with Client("http://soup.test", transport=httpx2.MockTransport(answer)) as client, pytest.raises(Unavailable):
        next(iter(getattr(client, verb)(value, [])))
    assert models == ["team/law@1"]


def test_a_closed_client_refuses_in_a_sentence_and_sends_nothing(live: Live) -> None:
    client = Client(live.url, live.world.admin)
    begun, pieces = client.keys(), client.stream("base/tiny", "0 1")
    client.close()
    client.close()
    for call in (client.models, lambda: list(begun), lambda: next(pieces)):
        with pytest.raises(Unavailable, match="This client is closed: make another one"):
            call()


def test_directories_are_read_in_threads_beside_it(
    live: Live, stocked: str, folders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever a push and a pull read there; texts as well."""
    opened: list[tuple[str, bool]] = []
    real, loops = Path.open, threading.get_ident()

    def noted(path: Path, mode: str = "r", *args: Any, **named: Any) -> Any:
        if mode.startswith("r"):
            opened.append((path.name, threading.get_ident() == loops))
        return real(path, mode, *args, **named)

    async def both() -> None:
        async with AsyncClient(live.url, live.world.admin) as client:
            await client.push(folders / "court", name=f"{stocked}/again")
            await client.pull(f"{stocked}/court", tmp_path / "court")

    monkeypatch.setattr(Path, "open", noted)
    asyncio.run(both())
    ours = [(name, on_loop) for name, on_loop in opened if name in {CONFIG_FILE, WEIGHTS_FILE, SAMPLES_FILE}]
    assert {name for name, on_loop in ours if not on_loop} == {CONFIG_FILE, WEIGHTS_FILE, SAMPLES_FILE}
    assert [name for name, on_loop in ours if on_loop] == []


def test_keys_namespaces_limits_usage_audit_and_health(
    typed: Client, stocked: str, live: Live, client: SoupClient
) -> None:
    created = typed.create_key("clerk", scopes=["read"], namespaces=[stocked])
    assert created.secret.startswith("sk-soup-")
    assert typed.change_key(created.id, name="other").name == "other"
    assert typed.rotate_key(created.id).secret != created.secret
    assert holds(typed.limits(key_id=created.id), client.limits(key_id=created.id))
    assert typed.change_limits(key_id=created.id, adapters=3).limits.adapters == 3
    assert typed.revoke_key(created.id).revoked_at is not None
    keys = list(typed.keys())
    assert created.id in [key.id for key in keys]
    settings = typed.namespace(stocked)
    assert typed.change_namespace(stocked, tuning="forbid", if_match=settings.etag).tuning == "forbid"
    assert typed.namespace(stocked).etag != settings.etag
    assert next(iter(typed.audit(limit=3))).action
    assert created.id in typed.audit_csv()
    assert all(row.requests for row in typed.usage(by=["model"]))
    assert typed.usage_csv().startswith("day")
    assert typed.ready().status == "ready"


# --- other versions -------------------------------------------------------------------------------


# Of servers that answer otherwise.


ALIAS: ClassVar[dict[str, Any]] = {"object": "alias", "alias": "prod", "version": 1, "ref": "a/b@1", "etag": "e"}


def aliases(*rows: Any) -> list[Any]:
    server = Server().on("GET /v1/adapters/a/b/aliases", ok({"object": "list", "data": list(rows)}))
    with Client("http://soup.test", transport=httpx2.MockTransport(server)) as client:
        return client.aliases("a/b")


def test_what_a_newer_server_says_beside_it_is_left_out() -> None:
    assert aliases({**ALIAS, "moved_at": "2030"})[0].ref == "a/b@1"
    server = Server().on("GET /readyz", ok({"status": "ready", "checks": {}, "since": {"a": 1}}))
    with Client("http://soup.test", transport=httpx2.MockTransport(server)) as client:
        assert client.ready().status == "ready"


def test_an_answer_that_is_none_says_which_field_differs() -> None:
    with pytest.raises(Unavailable, match=r"no Alias as this version knows it .*version: "):
        aliases({**ALIAS, "version": "one"})


# --- awaiting -------------------------------------------------------------------------------------


def test_lists_and_streams_are_gone_through_on_a_real_server(live: Live, stocked: str, typed: Client) -> None:
    fitted = typed.fit("uniform", pool={"namespaces": [stocked]}).id

    async def gone_through() -> tuple[set[str], str]:
        async with AsyncClient(live.url, live.world.admin) as client:
            adapters = await client.adapters(namespace=stocked)
            selectors = [selector.id async for selector in client.selectors()]
            pieces = [piece async for piece in client.stream(f"{stocked}/court", "0 1", max_tokens=6, seed=1)]
        assert fitted in selectors
        return {adapter.ref for adapter in adapters}, "".join(piece.choices[0].text for piece in pieces)

    refs = {adapter.ref for adapter in typed.adapters(namespace=stocked)}
    whole = typed.complete(f"{stocked}/court", "0 1", max_tokens=6, seed=1).choices[0].text
    assert asyncio.run(gone_through()) == (refs, whole)


def test_calls_run_beside_each_other_and_a_full_queue_is_waited_for() -> None:
    paused: list[float] = []

    async def pause(seconds: float) -> None:
        paused.append(seconds)

    busy = httpx2.Response(429, json={"error": {"message": "Full.", "code": "busy"}}, headers={"retry-after": "2"})
    server = Server().on("GET /v1/models", busy, ok({"data": []}), ok({"data": []}))

    async def both() -> list[Any]:
        async with AsyncClient("http://soup.test", transport=httpx2.MockTransport(server), pause=pause) as client:
            return await asyncio.gather(client.models(), client.models())

    assert asyncio.run(both()) == [[], []]
    assert paused == [2]


def test_a_call_that_is_cancelled_ends_where_it_is() -> None:
    server = Server().on("GET /v1/jobs/j/events", events()).on("GET /v1/jobs/j", ok({"id": "j", "state": "running"}))
    reached = asyncio.Event()

    async def pause(seconds: float) -> None:
        reached.set()
        await asyncio.Event().wait()

    async def given_up() -> None:
        async with AsyncClient("http://soup.test", transport=httpx2.MockTransport(server), pause=pause) as client:
            waiting = asyncio.ensure_future(client.wait_job("j"))
            await reached.wait()
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting

    asyncio.run(given_up())
    assert server.routes_called() == ["GET /v1/jobs/j/events", "GET /v1/jobs/j"]


def test_every_call_of_the_untyped_client_is_there_with_values() -> None:
    untyped = {name for name in vars(SoupClient) if name[0] != "_"}
    assert {OTHERWISE.get(name, name) for name in untyped} - {None, *dir(Client)} == set()
    assert set(OTHERWISE) <= untyped
