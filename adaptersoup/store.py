"""`Store`: a registry of adapters in a folder, with its base model, in this process.

It is what `soup serve` runs, on a Unix socket that only this user may open in the place of a port. So everything holds
here that holds of a server: the same checks, the same bytes, the same folder.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from adaptersoup.client.additions import name_of as name_of_folder
from adaptersoup.comparison import Comparison, compare
from adaptersoup.local_server import LocalServer
from adaptersoup.matrix import evaluate_on
from adaptersoup.requests import Model, checked, name_of, request_of
from adaptersoup.synchronous.client import Client
from adaptersoup.values import Adapter, Adapters, Perplexity, Selection, Selector, Soup
from registry import cores
from registry.adapters import attached, from_tensors
from registry.base_model import read_allowlist
from registry.catalogue.rows import AdapterRow
from registry.errors import Incompatible, InvalidParameter, Unavailable
from registry.evaluate.matrix import CrossEvaluated
from registry.files import sync_directory
from registry.names import is_part, parse_ref
from registry.progress import Progress, silent
from registry.stored_files import loadable
from service.http.app import create_app
from service.runtime import Runtime
from service.settings import Settings

ALLOWLIST = "bases.toml"
ADDRESS = "http://127.0.0.1"


class Store:
    """A registry in `folder`, open until `close` or the end of `with`.

    `base` is the folder of a base model (a transformers model with its tokenizer), or a repository of the hub with
    `revision`; it is remembered in the folder under `base_id`, by default the folder's name. Without one the store
    has those that it was given before. `settings` are those of a server (docs/reference/settings.md), and variables
    SOUP_... hold as they do there. Raises Unavailable where somebody else has the folder open.

    While one is open, torch computes on one core in the threads of this process, but for what the store itself does
    and what is done under `attach`.
    """

    def __init__(
        self,
        folder: Path | str,
        base: Path | str | None = None,
        *,
        base_id: str | None = None,
        revision: str | None = None,
        **settings: Any,
    ) -> None:
        self.folder = Path(folder).expanduser()
        self.folder.mkdir(parents=True, exist_ok=True)
        allowlist = self.folder / ALLOWLIST
        added = None if base is None else _entry(allowlist, base, base_id, revision)
        candidate = allowlist if added is None else _beside(allowlist, added)
        with ExitStack() as stack:
            stack.callback(_forget, candidate, allowlist)
            given = _settings(settings, self.folder, candidate if candidate.exists() else None)
            self._runtime = Runtime(given)
            cores.remember()
            stack.callback(cores.set_back)
            self._runtime.start()
            stack.callback(self._runtime.stop)
            if added is not None:  # nobody else writes there while the folder is ours
                candidate.replace(allowlist)
                sync_directory(self.folder)
            server = LocalServer(create_app(self._runtime))
            stack.callback(server.close)
            server.start()
            key = self._runtime.settings.admin_key_path.read_text(encoding="utf-8").strip()
            self._client = stack.enter_context(Client(ADDRESS, key, transport=server.transport()))
            stack.callback(self._runtime.begin_stop)
            self._embedding: list[str] = []
            self._closed = False
            self._open = stack.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop what runs, and give the folder free; again is nothing. Jobs that run go on when it is opened again."""
        self._closed = True
        self._open.close()

    @property
    def client(self) -> Client:
        """The client of the server inside, for all that a store has no method for; raises Unavailable once closed."""
        if self._closed:
            raise Unavailable("This store is closed.")
        return self._client

    # --- what is stored ---------------------------------------------------------------------------------------

    @property
    def base(self) -> str:
        """The name of the base model, `base/<id>`; raises InvalidParameter where there is not exactly one."""
        ids = list(self._runtime.bases)
        if len(ids) != 1:
            raise InvalidParameter(f"This store has {len(ids)} base models ({', '.join(ids)}): name one, as base/<id>.")
        return f"base/{ids[0]}"

    def push(
        self,
        folder: Path | str,
        *,
        name: str,
        domain: str | None = None,
        texts: Sequence[str] | None = None,
        tags: Sequence[str] = (),
        base: str | None = None,
        owner: str | None = None,
        progress: Progress | None = None,
    ) -> Adapter:
        """Store an adapter of a folder (ours, or PEFT's of a LoRA) as `name`, `namespace/name`.

        `domain` says what it was trained on, where the folder does not, and `texts` are passages of that: without
        them no selector can rank it. `owner` is who answers for it, a label that gives no right. What is there already
        is not stored again. Raises InvalidManifest and others.
        """
        pushed = self.client.push(
            folder, name=name, domain=domain, texts=texts, tags=tags, base=base, owner=owner, progress=progress
        )
        if pushed.job is not None:
            self._embedding.append(pushed.job)
        return self.adapter(pushed)

    def adapter(self, model: Model) -> Adapter:
        """A stored adapter or soup, with how it came to be."""
        return self.client.adapter(model)

    def adapters(self, *, limit: int | None = None, **filters: str | Sequence[str] | None) -> Adapters:
        """Stored adapters and soups, newest first; filters are those of `Client.adapters`."""
        return self.client.adapters(limit=limit, **filters)

    # --- soups ------------------------------------------------------------------------------------------------

    def fit(
        self,
        selector: str | Mapping[str, Any] = "posterior",
        *,
        pool: Mapping[str, Any] | None = None,
        progress: Progress | None = None,
    ) -> Selector:
        """Fit a selector over a pool, which its first selection does too; shows how well it tells domains apart."""
        self._embedded(progress)
        return self.client.fit(selector, pool=pool, progress=progress)

    def select(
        self,
        texts: Sequence[str],
        *,
        selector: str | Mapping[str, Any] | None = None,
        options: Mapping[str, Any] | None = None,
        pool: Mapping[str, Any] | None = None,
        progress: Progress | None = None,
    ) -> Selection:
        """Which adapters a selector would take for a sample of a domain; a pool that was never fitted is fitted first.

        `selector` is a kind (`posterior`, `gmm`, `cosine`, `uniform`) or a mapping with its fields; `options` and
        `pool` have those of SelectOptions and PoolRequest.
        """
        checked(texts)  # before anything is waited for
        self._embedded(progress)
        return self.client.select(texts, selector=selector, options=options, pool=pool, progress=progress)

    def cook(
        self,
        texts: Sequence[str] | None = None,
        *,
        effort: str | None = None,
        name: str | None = None,
        selector: str | Mapping[str, Any] | None = None,
        progress: Progress | None = None,
        **more: Any,
    ) -> Soup:
        """Pick adapters for a sample of a new domain and mix them, or say that nothing helps (`abstained`).

        `more` are further fields of CookRequest: `recipe` mixes by hand, `pool` and `options` say who may be chosen.
        """
        if texts is not None:
            checked(texts)
        if more.get("recipe") is None:
            self._embedded(progress)
        return self.client.cook(texts, effort=effort, name=name, selector=selector, progress=progress, **more)

    def evaluate(self, model: Model, texts: Sequence[str], *, baseline: Model | None = "base") -> Perplexity:
        """Perplexity of texts under a model, against a baseline: the base model, another, or None for none."""
        return self.client.evaluate(model, texts, baseline=self.base if baseline == "base" else baseline)

    def evaluate_pool(
        self,
        *,
        pool: Mapping[str, Any] | None = None,
        passages: int | None = None,
        on: str | None = None,
        parallel: int | None = None,
        cores: int | None = None,
        progress: Progress | None = None,
    ) -> CrossEvaluated:
        """Evaluate every adapter of a pool on the samples of all of them: how many pairs, and what went wrong.

        `client.evaluations()` lists what is known, which is not computed again. It is computed by this store, or with
        `on`, "ray" or "ray=HOST:PORT", as tasks of a Ray cluster: `parallel` at once, by default as many as have room,
        on `cores` processor cores each, by default one. `pool` has the fields of PoolRequest.
        """
        self._embedded(progress)
        if on is not None:
            return evaluate_on(
                on,
                self._runtime,
                pool=pool,
                passages=passages,
                parallel=parallel,
                cores=cores,
                progress=progress or silent,
            )
        if parallel is not None or cores is not None:
            raise InvalidParameter("parallel and cores are of tasks on Ray: give on='ray' as well.", param="on")
        job = self.client.evaluate_pool(pool=pool, passages=passages, progress=progress)
        return CrossEvaluated(**(job.result or {}))

    def generate(self, model: Model, prompt: str, **sampling: Any) -> str:
        """Text that goes on from a prompt; `sampling` has max_tokens, temperature, top_p, stop, seed ..."""
        return self.client.generate(model, prompt, **sampling)

    def compare(
        self,
        domains: Mapping[str, tuple[Sequence[str], Sequence[str]]],
        strategies: Mapping[str, Mapping[str, Any]],
        *,
        progress: Progress | None = None,
    ) -> Comparison:
        """Cook with every strategy for the sample of every domain, and score on other text of it beside the base.

        `domains` are (sample, test) by name; `strategies` fields of `cook` by name, such as {"cosine": {"selector":
        "cosine", "verify": False}}: one that is verified may abstain. The soups that are made are temporary: each is
        retired as soon as it was scored. Raises what cooking or scoring raises.
        """
        self._embedded(progress)
        return compare(self.client, domains, strategies, base=self.base, progress=progress or silent)

    @contextmanager
    def attach(self, model: Model, to: Any) -> Iterator[None]:
        """While open, a transformers model `to` of the same base computes with an adapter or soup of this store.

        It is your model, loaded by yourself; its weights are not touched, and the store does not see whether they are
        those of the base. Raises Incompatible where the adapter does not fit it, or there is nothing to attach.
        """
        row = self._row(name_of(model))
        base = self._runtime.bases[row.base_model]
        tensors = loadable(row, self._runtime.services.registry.blobs).load()
        module = from_tensors(row.config, base.shape, tensors).to(next(to.parameters()).device)
        with cores.spare(), attached(to, module):
            yield

    def _row(self, name: str) -> AdapterRow:
        ref = parse_ref(name)
        if name.startswith("base/"):
            raise Incompatible(f"{name} is the base model itself: there is nothing to attach.", param="model")
        with self._runtime.database.read() as catalogue:
            return catalogue.adapters.resolve(None, ref)

    def _embedded(self, progress: Progress | None) -> None:
        """Wait for the samples of what was pushed here: a pool has an adapter once its sample is embedded.

        Raises what is wrong with one, once: its adapter is there, and is in no pool.
        """
        while self._embedding:
            self.client.wait_job(self._embedding.pop(0), progress=progress)


def _settings(given: Mapping[str, Any], folder: Path, allowlist: Path | None) -> Settings:
    """Those of the store's server; raises InvalidParameter for what is none, or has another value."""
    if unknown := sorted(given.keys() - Settings.model_fields.keys()):
        raise InvalidParameter(f"A server has no setting {', '.join(unknown)}.", param=unknown[0])
    own = {"data": folder} | ({} if allowlist is None else {"bases": allowlist})
    if taken := sorted(given.keys() & own.keys()):
        raise InvalidParameter(f"{', '.join(taken)} of a store are in its folder.", param=taken[0])
    return request_of(Settings, **{"preload": False, **given, **own})


def _entry(allowlist: Path, base: Path | str, base_id: str | None, revision: str | None) -> str | None:
    """What the allowlist lacks of a base model; raises InvalidParameter where its id stands for another already."""
    local = Path(base).expanduser()
    source = str(local.absolute()) if local.is_dir() else str(base)
    named = base_id or name_of_folder(Path(source))
    if not is_part(named):
        raise InvalidParameter(f"{named!r} is no name of a base model: lower case, digits and . _ -.", param="base_id")
    known = read_allowlist(allowlist) if allowlist.exists() else {}
    if named in known:
        if (known[named].source, known[named].revision) != (source, revision):
            raise InvalidParameter(
                f"{named} is {known[named].source} in this store: give {source} another base_id.", param="base_id"
            )
        return None
    lines = [f"[bases.{_toml(named)}]", f"source = {_toml(source)}"]
    lines += [f"revision = {_toml(revision)}"] if revision else []
    return "\n".join([*lines, ""])


def _toml(text: str) -> str:
    """A basic string of TOML, which has JSON's escapes, but no surrogates and no DEL as it is."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _beside(allowlist: Path, added: str) -> Path:
    """The allowlist with what it lacks, in a file of its own that is read where the allowlist would be."""
    before = allowlist.read_text(encoding="utf-8") if allowlist.exists() else ""
    candidate = allowlist.with_name(f"{allowlist.name}.{secrets.token_hex(4)}")
    candidate.write_text(before + ("\n" if before else "") + added, encoding="utf-8")
    return candidate


def _forget(candidate: Path, allowlist: Path) -> None:
    if candidate != allowlist:
        candidate.unlink(missing_ok=True)
