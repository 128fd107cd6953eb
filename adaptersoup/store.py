"""`Store`: a registry of adapters in a folder, with its base model, in this process.

It runs the application of `soup serve` on a Unix socket that only this user may open. Checks, stored bytes and the
folder are those of a server.
"""

from __future__ import annotations

import atexit
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from adaptersoup.client.additions import name_of as name_of_folder
from adaptersoup.client.synchronous.connection import Closing
from adaptersoup.comparison import Comparison, compare
from adaptersoup.local_server import LocalServer
from adaptersoup.matrix import evaluate_on
from adaptersoup.requests import Model, Text, check_texts, model_name, request_of
from adaptersoup.synchronous.client import Client
from adaptersoup.values import Adapter, Adapters, Perplexity, Selection, Selector, Soup
from registry.adapters import attached, from_tensors
from registry.base_model import read_allowlist
from registry.base_model.architecture import check_model
from registry.catalogue.rows import AdapterRow, JobRow
from registry.errors import Incompatible, InvalidParameter, SoupError, Unavailable
from registry.evaluate.matrix import CrossEvaluated
from registry.files import replace_file
from registry.names import is_part, parse_ref
from registry.progress import Progress, silent
from registry.spec import LoraConfig
from registry.stored.adapters import loadable
from service.http.app import create_app
from service.http.models.mixture_names import parse_mixture
from service.operations import storage
from service.runtime import Runtime
from service.settings import Settings

ALLOWLIST = "bases.toml"
STORE_FILES = ("soup.db", "admin.key")
"""Files of which each store, and each data folder of a server, has at least one."""
ADDRESS = "http://127.0.0.1"
logging.getLogger("soup").addHandler(logging.NullHandler())  # errors are raised; a program may log them as well


class Store(Closing):
    """A registry in `folder`, open until `close` or the end of `with`.

    `base` is the folder of a base model (a transformers model with its tokenizer), or a repository of the hub with
    `revision`. The store's folder records it under `base_id`, by default the name of the base model's folder. Leave
    out `base`, or only `revision`, when you reopen a store. `settings` are those of a server
    (docs/reference/settings.md), as are the variables SOUP_... Raises InvalidParameter for a new folder without a base
    model, and Unavailable if another process has the folder open.

    An open store limits your own torch code in this process to one core, except under `attach`.
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
        self.folder = Path(folder).expanduser().absolute()
        allowlist = self.folder / ALLOWLIST
        if base is None and not allowlist.exists():
            _check_not_new(self.folder, settings)
        with ExitStack() as stack:
            stack.enter_context(storage.owned(self.folder))  # no other process changes the allowlist meanwhile
            entry = None if base is None else _new_entry(allowlist, base, base_id, revision)
            candidate = allowlist if entry is None else _extended_copy(allowlist, entry)
            stack.callback(_remove_candidate, candidate, allowlist)
            self._runtime = Runtime(_settings(settings, self.folder, candidate if candidate.exists() else None))
            self._runtime.start(is_owned=True)
            stack.callback(self._runtime.stop)
            if entry is not None:
                replace_file(allowlist, candidate.read_bytes(), temporary=candidate)
            server = LocalServer(create_app(self._runtime))
            stack.callback(server.close)
            server.start()
            key = self._runtime.settings.admin_key_path.read_text(encoding="utf-8").strip()
            self._client = stack.enter_context(Client(ADDRESS, key, transport=server.transport()))
            stack.callback(self._runtime.begin_stop)
            self._embedding_jobs: set[str] = set()
            self._closed = False
            self._open = stack.pop_all()
            atexit.register(self.close)  # a thread that still computes while Python ends would abort the process

    def close(self) -> None:
        """Stop the server and release the folder, as the end of the program does; a second call does nothing.

        Running jobs continue when the folder is opened again.
        """
        self._closed = True
        atexit.unregister(self.close)
        self._open.close()

    @property
    def client(self) -> Client:
        """A client of the store's server, for calls that a store has no method for; raises Unavailable once closed."""
        self._check_open()
        return self._client

    def _check_open(self) -> None:
        """Raise Unavailable once the store is closed."""
        if self._closed:
            raise Unavailable("This store is closed.")

    # --- adapters ---------------------------------------------------------------------------------------------

    @property
    def base(self) -> str:
        """The name of the base model, `base/<id>`.

        Raises InvalidParameter unless there is exactly one, and Unavailable once the store is closed.
        """
        self._check_open()
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
        texts: Sequence[Text] | None = None,
        tags: Sequence[str] = (),
        base: str | None = None,
        owner: str | None = None,
        progress: Progress | None = None,
    ) -> Adapter:
        """Store an adapter of a folder (ours, or PEFT's of a LoRA) as `name`, `namespace/name`.

        `domain` says what it was trained on, if the folder does not, and `texts` are passages of that domain: without
        them no selector can rank it. `owner` is the person responsible for it, a label without rights. Bytes that are
        stored already are not stored again. Raises InvalidManifest and others.
        """
        pushed = self.client.push(
            folder, name=name, domain=domain, texts=texts, tags=tags, base=base, owner=owner, progress=progress
        )
        if pushed.job is not None:
            self._embedding_jobs.add(pushed.job)
        return self.adapter(pushed).model_copy(update={"warnings": pushed.warnings})

    def adapter(self, model: Model) -> Adapter:
        """A stored adapter or soup, with its provenance."""
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
        """Fit a selector over a pool; the result shows how well it tells domains apart.

        The first selection from a pool fits it too. Waits until all pushed samples are embedded.
        """
        self._wait_embedded(progress)
        return self.client.fit(selector, pool=pool, progress=progress)

    def select(
        self,
        texts: Sequence[Text],
        *,
        selector: str | Mapping[str, Any] | None = None,
        options: Mapping[str, Any] | None = None,
        pool: Mapping[str, Any] | None = None,
        progress: Progress | None = None,
    ) -> Selection:
        """The adapters that a selector chooses for a sample of a domain; a pool never fitted is fitted first.

        Waits until all pushed samples are embedded, those of earlier sessions too, and their pools refitted.
        `selector` is a kind (`posterior`, `gmm`, `cosine`, `uniform`) or a mapping with its fields; `options` and
        `pool` have those of SelectOptions and PoolRequest.
        """
        check_texts(texts)  # before the wait
        self._wait_refitted(progress)
        return self.client.select(texts, selector=selector, options=options, pool=pool, progress=progress)

    def cook(
        self,
        texts: Sequence[Text] | None = None,
        *,
        effort: str | None = None,
        name: str | None = None,
        selector: str | Mapping[str, Any] | None = None,
        progress: Progress | None = None,
        **more: Any,
    ) -> Soup:
        """Choose adapters for a sample of a new domain and mix them, or abstain if none helps.

        Without a recipe, it waits as `select` does. `more` are further fields of SoupRequest (docs/reference/api.md):
        `recipe` mixes by hand, `pool` and `options` limit the choice.
        """
        if texts is not None:
            check_texts(texts)
        if more.get("recipe") is None:
            self._wait_refitted(progress)
        return self.client.cook(texts, effort=effort, name=name, selector=selector, progress=progress, **more)

    def evaluate(self, model: Model, texts: Sequence[Text], *, baseline: Model | None = "base") -> Perplexity:
        """Perplexity of texts under a model, compared with `baseline`: by default its base model, None for none."""
        return self.client.evaluate(model, texts, baseline=self._base_of(model) if baseline == "base" else baseline)

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
        """Evaluate every adapter of a pool on the samples of all its adapters: the count of pairs, and the failures.

        Pairs that `client.evaluations()` lists are not computed again. With `on` ("ray" or "ray=HOST:PORT") they are
        tasks of a Ray cluster: `parallel` at once, by default as many as fit, on `cores` processor cores each, by
        default one. `pool` has the fields of PoolRequest.
        """
        self._wait_embedded(progress)
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
            raise InvalidParameter("'parallel' and 'cores' are for tasks on Ray: give on='ray' too.", param="on")
        job = self.client.evaluate_pool(pool=pool, passages=passages, progress=progress)
        return CrossEvaluated(**(job.result or {}))

    def generate(self, model: Model, prompt: str, **sampling: Any) -> str:
        """The completion of a prompt; `sampling` has max_tokens, temperature, top_p, stop, seed ..."""
        return self.client.generate(model, prompt, **sampling)

    def compare(
        self,
        domains: Mapping[str, tuple[Sequence[str], Sequence[str]]],
        strategies: Mapping[str, Mapping[str, Any]],
        *,
        progress: Progress | None = None,
    ) -> Comparison:
        """Cook with every strategy for the sample of every domain, and score on its test texts beside the base.

        `domains` are (sample, test) by name; `strategies` are arguments of `cook` by name, such as {"cosine":
        {"selector": "cosine", "verify": False}}: a verified one may abstain. Each soup is retired once it is scored.
        Raises the errors of `cook` and `evaluate`.
        """
        self._wait_refitted(progress)
        return compare(self.client, domains, strategies, progress=progress or silent)

    @contextmanager
    def attach(self, model: Model, to: Any) -> Iterator[None]:
        """Attach an adapter or soup of this store to a transformers model `to` of the same base, until `with` ends.

        The weights of `to` are not changed, and not compared with those of the base. Raises Incompatible if the model
        has another shape than the base, and for a base model, which has nothing to attach. Raises Unavailable once the
        store is closed.
        """
        row = self._row(model_name(model))
        base = self._runtime.bases[row.base_model]
        check_model(to, base.shape, row.config.modules() if isinstance(row.config, LoraConfig) else ())
        tensors = loadable(row, self._runtime.services.registry.blobs).load()
        module = from_tensors(row.config, base.shape, tensors).to(next(to.parameters()).device)
        with attached(to, module):
            yield

    def _base_of(self, model: Model) -> str:
        """The name of a model's base model; for a mixture that of its first adapter."""
        name = parse_mixture(model_name(model))[0].ref
        return name if name.startswith("base/") else f"base/{self._row(name).base_model}"

    def _row(self, name: str) -> AdapterRow:
        self._check_open()
        ref = parse_ref(name)
        if name.startswith("base/"):
            raise Incompatible(f"{name} is the base model itself: there is nothing to attach.", param="model")
        with self._runtime.database.read() as catalogue:
            return catalogue.adapters.resolve(None, ref)

    def _wait_embedded(self, progress: Progress | None) -> None:
        """Wait until pushed samples are embedded, in earlier sessions too: an adapter joins its pool only then.

        Raises the error of a sample that cannot be embedded, once: its adapter stays stored, and joins no pool.
        """
        for job in self._embedding_jobs | {row.id for row in self._active_jobs("embed")}:
            self._embedding_jobs.discard(job)
            self.client.wait_job(job, progress=progress)

    def _wait_refitted(self, progress: Progress | None) -> None:
        """Wait as `_wait_embedded`, then until the selectors of changed pools know the new adapters."""
        self._wait_embedded(progress)
        for row in self._active_jobs("fit"):
            if not row.is_requested:
                with suppress(SoupError):  # the earlier selector answers, and names the adapters that it does not know
                    self.client.wait_job(row.id, progress=progress)

    def _active_jobs(self, kind: str) -> list[JobRow]:
        """Queued and running jobs; raises Unavailable once the store is closed."""
        self._check_open()
        with self._runtime.database.read() as catalogue:
            return catalogue.jobs.active(kind)


def _check_not_new(folder: Path, settings: Mapping[str, Any]) -> None:
    """Raise InvalidParameter for a folder without a store, if `settings` name no base models either."""
    is_new = not any((folder / name).exists() for name in STORE_FILES)
    if is_new and _settings(settings, folder, None).bases is None:
        raise InvalidParameter(
            f"There is no store in {folder}: check the path, or give 'base' for a new one.", param="base"
        )


def _settings(options: Mapping[str, Any], folder: Path, allowlist: Path | None) -> Settings:
    """Settings of the store's server.

    Raises InvalidParameter for an unknown setting, an invalid value, and a setting that the folder determines.
    """
    if unknown := sorted(options.keys() - Settings.model_fields.keys()):
        raise InvalidParameter(f"A server has no setting {', '.join(unknown)}.", param=unknown[0])
    fixed = {"data": folder} | ({} if allowlist is None else {"bases": allowlist})
    if conflicting := sorted(options.keys() & fixed.keys()):
        raise InvalidParameter(
            f"A store keeps {', '.join(conflicting)} in its own folder: drop these settings.", param=conflicting[0]
        )
    return request_of(Settings, **{"preload": False, **options, **fixed})


def _new_entry(allowlist: Path, base: Path | str, base_id: str | None, revision: str | None) -> str | None:
    """The TOML lines that add a base model to the allowlist, None if it is listed already.

    Raises InvalidParameter for an invalid id, and for one that stands for another model in the allowlist.
    """
    local = Path(base).expanduser()
    source = str(local.resolve()) if local.is_dir() else str(base)
    name = base_id or name_of_folder(Path(source))
    if not is_part(name):
        raise InvalidParameter(f"{name!r} is no name of a base model: lower case, digits and . _ -.", param="base_id")
    listed = (read_allowlist(allowlist) if allowlist.exists() else {}).get(name)
    if listed is None:
        lines = [f"[bases.{_toml_string(name)}]", f"source = {_toml_string(source)}"]
        lines += [f"revision = {_toml_string(revision)}"] if revision else []
        return "\n".join([*lines, ""])
    if listed.source != source:
        raise InvalidParameter(
            f"{name} is {listed.source} in this store: give {source} another base_id.", param="base_id"
        )
    if revision is not None and revision != listed.revision:
        listed_revision = f"at revision {listed.revision}" if listed.revision else "without a revision"
        raise InvalidParameter(
            f"{name} is {source} {listed_revision} in this store: give revision {revision} another base_id.",
            param="base_id",
        )
    return None


def _toml_string(text: str) -> str:
    """A basic string of TOML: its escapes are JSON's, but a DEL has to be escaped too."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _extended_copy(allowlist: Path, entry: str) -> Path:
    """Write a copy of the allowlist with one more entry beside it, and return its path. The folder must be owned."""
    text = allowlist.read_text(encoding="utf-8") if allowlist.exists() else ""
    candidate = allowlist.with_name(f"{allowlist.name}.new")
    candidate.write_text(text + ("\n" if text else "") + entry, encoding="utf-8")
    return candidate


def _remove_candidate(candidate: Path, allowlist: Path) -> None:
    if candidate != allowlist:
        candidate.unlink(missing_ok=True)
