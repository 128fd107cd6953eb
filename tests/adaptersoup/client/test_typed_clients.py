"""`adaptersoup.Client` and `AsyncClient` on a real server: the same calls, the same values, nothing lost in either."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import httpx2
import pytest
from pydantic import BaseModel

from adaptersoup import Adapter, AsyncClient, Client, Selection, Soup
from adaptersoup.client.client import SoupClient
from plots.style import to_svg
from registry.errors import Cancelled, Conflict, InvalidParameter, NotFound, Retired, Unauthenticated, Unavailable
from registry.formats import (
    CONFIG_FILE,
    SAMPLES_FILE,
    WEIGHTS_FILE,
    AdapterContents,
    read_directory,
    write_directory,
)
from registry.names import sha256_digest
from registry.spec import Card, Provenance
from service.engine import Delta, GenerateRequest, Ticket
from service.http.schemas.jobs import Job, Progress
from tests.service.cluster import PATIENCE
from tests.service.passages import WORDS, passages
from tests.service.scripted_server import Server, events, ok
from tests.service.servers import CONFIG, Live, adapter_weights

INIT = Provenance(init_hash=f"sha256:{7:064x}", init_source="declared")
OTHERWISE = {"perplexity": "evaluate", "push_patiently": None, "wait_embedded": None}
"""Methods of `SoupClient` that are called otherwise, or are no call of their own."""


class Asked:
    """A client of either kind, used alike."""

    def __init__(self, kind: str, url: str, key: str | None) -> None:
        self.loop = asyncio.new_event_loop() if kind == "awaited" else None
        self.client: Any = AsyncClient(url, key) if self.loop else Client(url, key)

    def __call__(self, name: str, /, *given: Any, **named: Any) -> Any:
        found = getattr(self.client, name)(*given, **named)
        return self.loop.run_until_complete(found) if self.loop else found

    def all(self, name: str, /, *given: Any, **named: Any) -> list[Any]:
        """The rows of a list, or the pieces of a stream."""
        found = getattr(self.client, name)(*given, **named)

        async def gone_through() -> list[Any]:
            return [one async for one in found]

        return self.loop.run_until_complete(gone_through()) if self.loop else list(found)

    def close(self) -> None:
        if self.loop:
            self.loop.run_until_complete(self.client.aclose())
            self.loop.close()
        else:
            self.client.close()


@pytest.fixture(scope="module", params=["waiting", "awaited"])
def asked(request: pytest.FixtureRequest, live: Live) -> Iterator[Asked]:
    found = Asked(request.param, live.url, live.world.admin)
    yield found
    found.close()


@pytest.fixture(scope="module")
def folders(live: Live, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("adapters")
    for seed, domain in enumerate(WORDS):
        weights = adapter_weights(live.world.runtime, seed=seed)
        contents = AdapterContents(
            config=CONFIG,
            domain=domain,
            weights=weights,
            base_model="tiny",
            provenance=INIT,
            texts=passages(domain, 30),
        )
        write_directory(root / domain, contents)
    return root


@pytest.fixture(scope="module")
def stocked(asked: Asked, folders: Path) -> str:
    """A namespace of this kind of client, with an adapter for each domain."""
    namespace = "async" if asked.loop else "sync"
    for domain in WORDS:
        pushed = asked("push", folders / domain, name=f"{namespace}/{domain}", tags=["v1"])
        if pushed.job:
            assert asked("wait_job", pushed.job).state == "succeeded"
    return namespace


def holds(value: Any, raw: Any) -> bool:
    """Whether a value has all that JSON says."""
    if isinstance(value, BaseModel):
        value = value.model_dump(mode="json")
    if isinstance(raw, dict):
        return all(name in value and holds(value[name], one) for name, one in raw.items())
    if isinstance(raw, list):
        return len(value) == len(raw) and all(map(holds, value, raw))
    return bool(value == raw)


class TestStored:
    def test_what_was_pushed_is_listed_and_shown_with_all_that_the_server_says(
        self, asked: Asked, stocked: str, client: SoupClient
    ) -> None:
        found = asked("adapters", namespace=stocked, kind="adapter")
        assert sorted(one.domain for one in found) == sorted(WORDS)
        whole = asked("adapter", found[0])
        assert isinstance(whole, Adapter)
        assert holds(whole, client.adapter(found[0].ref))
        assert holds(list(found), list(client.adapters(namespace=stocked, kind="adapter")))
        assert holds(asked("lineage", found[0].ref), client.lineage(found[0].ref))
        assert holds(asked("files", found[0].digest), client.files(found[0].digest))
        assert holds(asked("models"), client.models())

    def test_a_folder_comes_back_as_it_was(self, asked: Asked, stocked: str, folders: Path, tmp_path: Path) -> None:
        assert asked("pull", f"{stocked}/court", tmp_path / "court") == tmp_path / "court"
        assert read_directory(tmp_path / "court").config == CONFIG
        with pytest.raises(Conflict):
            asked("pull", f"{stocked}/court", tmp_path / "court")
        asked("pull", f"{stocked}/court", tmp_path / "court", replace=True)

    def test_large_files_go_in_parts(self, asked: Asked) -> None:
        data = bytes(range(256)) * 1000 + (b"a" if asked.loop else b"b")
        told: list[int] = []
        digest = asked("upload", data, part_bytes=100_000, progress=lambda done, total, name: told.append(done))
        assert digest == sha256_digest(data)
        assert told == [0, 100_000, 200_000, 256_001]
        assert asked("has_blob", digest)
        assert not asked("has_blob", sha256_digest(b"none"))

    def test_card_aliases_and_life_of_a_version(self, asked: Asked, stocked: str, folders: Path) -> None:
        pushed = asked("push", folders / "code", name=f"{stocked}/changed", owner="us")
        ref = pushed.ref
        assert pushed.owner == "us"
        assert asked("update_adapter", ref, owner="them").owner == "them"
        assert [one.ref for one in asked("adapters", owner="them", namespace=stocked)] == [ref]
        assert asked("update_adapter", ref, owner="").owner is None
        changed = asked("update_adapter", ref, card=Card(tags=("v2",)))
        assert changed.card.tags == ("v2",)
        alias = asked("put_alias", f"{stocked}/changed", "prod", 1)
        assert (alias.alias, [one.ref for one in asked("aliases", ref)]) == ("prod", [ref])
        asked("delete_alias", f"{stocked}/changed", "prod")
        assert [one.ref for one in asked("delete_adapter", ref)] == [ref]
        assert asked("restore", ref).retired_at is None
        assert asked("purge", ref).adapter.ref == ref
        assert asked("collect", dry_run=True).dry_run
        with pytest.raises(Retired, match="purged"):
            asked("adapter", f"{stocked}/changed")


class TestSoups:
    def test_a_selector_a_selection_and_a_soup_are_values_that_show_themselves(
        self, asked: Asked, stocked: str, client: SoupClient
    ) -> None:
        pool = {"namespaces": [stocked]}
        fitted = asked("fit", "cosine", pool=pool)
        assert fitted.domains == 3
        assert "cosine over 3 domains" in fitted._repr_html_()
        assert "cosine over 3 domains" in to_svg(fitted.plot())
        assert holds(asked("selector", fitted.id), client.selector(fitted.id))
        assert fitted.id in [one.id for one in asked.all("selectors")]
        chosen = asked("select", passages("court", 20, seed=1), pool=pool)
        assert isinstance(chosen, Selection)
        assert [one.domain for one in chosen.selection.selected] == ["court"]
        assert asked("nearest", passages("court", 3, seed=1), pool=pool).data[0].adapter.domain == "court"
        soup = asked("cook", passages("court", 20, seed=1), pool=pool, effort="instant")
        assert isinstance(soup, Soup)
        assert soup.verification is not None

    def test_a_job_is_watched_and_its_soup_read(self, asked: Asked, stocked: str) -> None:
        recipe = {"ingredients": [{"ref": f"{stocked}/court"}, {"ref": f"{stocked}/code", "weight": 3.0}]}
        begun = asked("begin_cook", recipe=recipe, mixing="average", name=f"{stocked}/mixed")
        assert isinstance(begun, Job)
        said = asked.all("watch", begun)
        assert all(isinstance(one, Progress) for one in said[:-1])
        assert isinstance(said[-1], Job)
        assert said[-1].state == "succeeded"
        soup = asked("soup_of", begun)
        assert soup.model == f"{stocked}/mixed@1"
        assert asked("job", begun.id).state == asked("cancel_job", begun).state == "succeeded"
        assert begun.id in [one.id for one in asked.all("jobs", kind="cook")]
        embedded = asked.all("jobs", kind="embed", limit=1)[0]
        with pytest.raises(InvalidParameter, match="cooks nothing"):
            asked("soup_of", embedded)
        assert asked("cook", recipe=recipe, mixing="average", name=f"{stocked}/mixed").cached

    def test_what_is_asked_for_wrongly_never_leaves(self, asked: Asked) -> None:
        for wrong in ("one text", [1, 2]):
            with pytest.raises(InvalidParameter, match="a list of passages"):
                asked("cook", wrong)
        with pytest.raises(InvalidParameter, match="efort"):
            asked("cook", ["a"], efort="quick")


class TestInference:
    def test_scores_and_text_whole_and_in_pieces(self, asked: Asked, stocked: str) -> None:
        model, drawn = f"{stocked}/court", {"max_tokens": 6, "seed": 1}
        found = asked("evaluate", model, passages("court", 3), baseline="base/tiny")
        assert found.baseline.model == "base/tiny"
        whole = asked("complete", model, "0 1", **drawn)
        pieces = asked.all("stream", model, "0 1", **drawn)
        assert len(pieces) > 1
        said = "".join(one.choices[0].text for one in pieces)
        assert said == whole.choices[0].text == asked("generate", model, "0 1", **drawn)
        assert len(asked("embed", "base/tiny", ["a", "b"]).data) == 2

    def test_a_chat_too(self, client: SoupClient) -> None:
        chunk = {
            "id": "c", "created": 1, "model": "m", "system_fingerprint": "f", "object": "chat.completion.chunk",
            "choices": [{"index": 0, "delta": {"content": "Hi"}, "logprobs": None, "finish_reason": None}],
        }  # fmt: skip
        server = Server().on("POST /v1/chat/completions", events(("message", chunk), tail="data: [DONE]\n\n"))
        with Client("http://soup.test", transport=httpx2.MockTransport(server)) as typed:
            said = list(typed.stream_chat("m", [{"role": "user", "content": "?"}]))
        assert [one.choices[0].delta.content for one in said] == ["Hi"]

    def test_whoever_breaks_off_within_with_ends_it_on_the_server(
        self, asked: Asked, live: Live, stocked: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        engine, ended = live.world.runtime.engine, threading.Event()
        submit_all, tickets = engine.submit_all, list[Ticket]()

        def slowed(requests: Sequence[GenerateRequest]) -> list[Ticket]:
            """Submit them with half a second between two tokens: what is not cancelled takes half a minute."""

            def on_token(delta: Delta) -> None:
                ended.wait(0.5)
                assert request.on_token is not None
                request.on_token(delta)

            [request] = requests
            tickets.extend(submit_all([replace(request, on_token=on_token)]))
            tickets[0].add_done_callback(lambda _: ended.set())
            return tickets

        monkeypatch.setattr(engine, "submit_all", slowed)
        stream = asked.client.stream(f"{stocked}/court", "0 1", max_tokens=60)  # held: nothing collects it

        async def first() -> Any:
            async with stream as pieces:
                piece = await anext(pieces)
            await asyncio.to_thread(ended.wait, PATIENCE)  # the loop has to run for the connection to be closed
            return piece

        if asked.loop:
            piece = asked.loop.run_until_complete(first())
        else:
            with stream as pieces:
                piece = next(pieces)
        assert piece.choices[0].text is not None
        assert ended.wait(PATIENCE)
        assert tickets[0].cancelled()


class TestClosed:
    """A client is closed once; what is asked of it afterwards is refused in our words, and nothing is sent."""

    def test_one_that_waits(self, live: Live) -> None:
        client = Client(live.url, live.world.admin)
        begun, asked = client.keys(), client.stream("base/tiny", "0 1")
        client.close()
        client.close()
        for call in (client.models, lambda: list(begun), lambda: next(asked)):
            with pytest.raises(Unavailable, match="This client is closed: make another one"):
                call()

    def test_one_that_is_awaited(self, live: Live) -> None:
        async def closed() -> None:
            client = AsyncClient(live.url, live.world.admin)
            await client.aclose()
            with pytest.raises(Unavailable, match="This client is closed: make another one"):
                await client.models()
            with pytest.raises(Unavailable, match="This client is closed"):
                await anext(client.stream("base/tiny", "0 1"))

        asyncio.run(closed())


class TestEventLoop:
    def test_directories_are_read_in_threads_beside_it(
        self, live: Live, stocked: str, folders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Whatever a push and a pull read there; texts as well."""
        opened: list[tuple[str, bool]] = []
        real, loops = Path.open, threading.get_ident()

        def noted(path: Path, mode: str = "r", *given: Any, **named: Any) -> Any:
            if mode.startswith("r"):
                opened.append((path.name, threading.get_ident() == loops))
            return real(path, mode, *given, **named)

        async def both() -> None:
            async with AsyncClient(live.url, live.world.admin) as client:
                await client.push(folders / "court", name=f"{stocked}/again")
                await client.pull(f"{stocked}/court", tmp_path / "court")

        monkeypatch.setattr(Path, "open", noted)
        asyncio.run(both())
        ours = [(name, on_loop) for name, on_loop in opened if name in {CONFIG_FILE, WEIGHTS_FILE, SAMPLES_FILE}]
        assert {name for name, on_loop in ours if not on_loop} == {CONFIG_FILE, WEIGHTS_FILE, SAMPLES_FILE}
        assert [name for name, on_loop in ours if on_loop] == []


class TestOperators:
    def test_keys_namespaces_limits_usage_audit_and_health(
        self, asked: Asked, stocked: str, live: Live, client: SoupClient
    ) -> None:
        made = asked("create_key", "clerk", scopes=["read"], namespaces=[stocked])
        assert made.secret.startswith("sk-soup-")
        assert asked("change_key", made.id, name="other").name == "other"
        assert asked("rotate_key", made.id).secret != made.secret
        assert holds(asked("limits", key_id=made.id), client.limits(key_id=made.id))
        assert asked("change_limits", key_id=made.id, adapters=3).limits.adapters == 3
        assert asked("revoke_key", made.id).revoked_at is not None
        assert made.id in [one.id for one in asked.all("keys")]
        kept = asked("namespace", stocked)
        assert asked("change_namespace", stocked, tuning="forbid", if_match=kept.etag).tuning == "forbid"
        assert asked("namespace", stocked).etag != kept.etag
        assert asked.all("audit", limit=3)[0].action
        assert made.id in asked("audit_csv")
        assert all(one.requests for one in asked.all("usage", by=["model"]))
        assert asked("usage_csv").startswith("day")
        assert asked("ready").status == "ready"

    def test_errors_are_those_of_the_registry(self, asked: Asked, live: Live) -> None:
        with pytest.raises(NotFound):
            asked("adapter", "team/none")
        nobody = Asked("awaited" if asked.loop else "waiting", live.url, "sk-soup-none")
        with pytest.raises(Unauthenticated):
            nobody.all("keys")
        nobody.close()


class TestOtherVersions:
    """Of servers that answer otherwise."""

    ALIAS: ClassVar[dict[str, Any]] = {"object": "alias", "alias": "prod", "version": 1, "ref": "a/b@1", "etag": "e"}

    def aliases(self, *rows: Any) -> list[Any]:
        server = Server().on("GET /v1/adapters/a/b/aliases", ok({"object": "list", "data": list(rows)}))
        with Client("http://soup.test", transport=httpx2.MockTransport(server)) as client:
            return client.aliases("a/b")

    def test_what_a_newer_server_says_beside_it_is_left_out(self) -> None:
        assert self.aliases({**self.ALIAS, "moved_at": "2030"})[0].ref == "a/b@1"
        card = {"status": "ready", "checks": {}, "since": {"a": 1}}
        server = Server().on("GET /readyz", ok(card))
        with Client("http://soup.test", transport=httpx2.MockTransport(server)) as client:
            assert client.ready().status == "ready"

    def test_an_answer_that_is_none_says_which_field_differs(self) -> None:
        with pytest.raises(Unavailable, match=r"no Alias as this version knows it .*version: "):
            self.aliases({**self.ALIAS, "version": "one"})


class TestAwaiting:
    def test_calls_run_beside_each_other_and_a_full_queue_is_waited_for(self) -> None:
        paused: list[float] = []

        async def pause(seconds: float) -> None:
            paused.append(seconds)

        busy = httpx2.Response(429, json={"error": {"message": "Full.", "code": "busy"}}, headers={"retry-after": "2"})
        server = Server().on("GET /v1/models", busy, ok({"data": []}), ok({"data": []}))

        async def both() -> list[Any]:
            transport = httpx2.MockTransport(server)
            async with AsyncClient("http://soup.test", transport=transport, pause=pause) as client:
                return await asyncio.gather(client.models(), client.models())

        assert asyncio.run(both()) == [[], []]
        assert paused == [2]

    def test_a_call_that_is_cancelled_ends_where_it_is(self) -> None:
        server = (
            Server().on("GET /v1/jobs/j/events", events()).on("GET /v1/jobs/j", ok({"id": "j", "state": "running"}))
        )
        reached = asyncio.Event()

        async def pause(seconds: float) -> None:
            reached.set()
            await asyncio.Event().wait()

        async def given_up() -> None:
            transport = httpx2.MockTransport(server)
            async with AsyncClient("http://soup.test", transport=transport, pause=pause) as client:
                waiting = asyncio.ensure_future(client.wait_job("j"))
                await reached.wait()
                waiting.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await waiting

        asyncio.run(given_up())
        assert server.said() == ["GET /v1/jobs/j/events", "GET /v1/jobs/j"]

    def test_progress_may_end_a_call(self) -> None:
        step = {"done": 1, "total": 2, "message": ""}
        server = Server().on("GET /v1/jobs/j/events", events(("progress", step), ("progress", step)))

        def tell(done: int, total: int, message: str) -> None:
            raise Cancelled("Enough.")

        async def ended() -> None:
            async with AsyncClient("http://soup.test", transport=httpx2.MockTransport(server)) as client:
                await client.wait_job("j", progress=tell)

        with pytest.raises(Cancelled, match="Enough"):
            asyncio.run(ended())


class TestSurface:
    def test_every_call_of_the_untyped_client_is_there_with_values(self) -> None:
        untyped = {name for name in vars(SoupClient) if name[0] != "_"}
        wanted = {OTHERWISE.get(name, name) for name in untyped} - {None}
        assert wanted - set(dir(Client)) == set()
        assert set(OTHERWISE) <= untyped
