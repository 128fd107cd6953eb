"""Everything a server is made of, built once and handed down: no other module holds state.

`soup serve` and tests build a Runtime from settings, `start` it, give it to `create_app`, and `stop` it. Two can
live in one process, over two data folders. Base models are loaded and run by the engine only.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from contextlib import ExitStack

import torch
from torch import Tensor

from registry.adapters.weights import adapter_digest, load_tensors
from registry.base_model import BaseText, read_allowlist
from registry.blobs import BlobStore, LocalBlobs
from registry.catalogue.database import Database
from registry.catalogue.rows import AdapterRow
from registry.encoders import Encoder, MeanPoolEncoder, Memory, RememberedEncoder, SentenceBertEncoder
from registry.errors import Internal, Unavailable
from registry.spec import BaseEntry, BaseShape
from service.engine import AdapterHandle, Engine
from service.engine.bases import AllowedBases
from service.http.auth import ensure_admin_key
from service.jobs.runner import JobRunner
from service.settings import Settings
from service.storage import check_schema, is_sqlite, migrate, newest_missing, owned, sweep, sweep_requests

log = logging.getLogger("soup.runtime")

DRAIN_SECONDS = 10.0
"""How long requests in the engine may take to finish when the server stops."""


class Runtime:
    """The parts of one server. `blobs` and `jobs` are there from `start` on, the rest from the beginning.

    Building one reads the allowlist and nothing else; raises InvalidParameter where that is wrong.
    """

    blobs: BlobStore
    jobs: JobRunner

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.bases: Mapping[str, BaseEntry] = {} if settings.bases is None else read_allowlist(settings.bases)
        self.database = Database(settings.database, pool_size=settings.database_pool)
        self._allowed = AllowedBases(self.bases, settings.cache)
        self.engine = Engine(
            self._allowed,
            max_queue=settings.engine_queue,
            max_batch_tokens=settings.engine_batch_tokens,
            max_rows=settings.engine_rows,
            bank_bytes=settings.adapter_bank_bytes,
            memory_bytes=settings.memory_bytes,
        )
        self.sentence_bert = SentenceBertEncoder()
        self._vectors = Memory()
        self.selections = threading.BoundedSemaphore(max(1, settings.database_pool // 4))
        """Selections that may embed at once: each holds a thread, and threads are what every request needs."""
        self._open = ExitStack()
        self._started = False

    @property
    def sole_owner(self) -> bool:
        """Whether nobody else uses database and blobs: they are the data folder's own, and that has one owner."""
        return self.settings.database_url is None and self.settings.blobs is None

    def start(self) -> None:
        """Own the data folder, migrate, write the admin key, load base models, start the engine and the jobs.

        Raises Unavailable where the folder has another owner, the schema is behind, or a base cannot be loaded;
        then nothing is left running.
        """
        if self._started:
            raise Internal("the runtime was started already")
        self._started = True
        with ExitStack() as stack:
            stack.enter_context(owned(self.settings.data))
            stack.callback(self.database.close)
            self._prepare_data()
            if self.settings.threads is not None:
                torch.set_num_threads(self.settings.threads)
            self._prepare_bases()
            (sweep if self.sole_owner else sweep_requests)(self.database, self.blobs)
            self.engine.start()
            stack.callback(self.engine.stop, drain=DRAIN_SECONDS)
            self.jobs = JobRunner(self)
            stack.callback(self.jobs.stop)
            self.jobs.start()
            self._open = stack.pop_all()

    def stop(self) -> None:
        """Stop the jobs, then the engine, close the database, give the data folder back. Again is nothing."""
        self._open.close()

    def _prepare_data(self) -> None:
        settings = self.settings
        if is_sqlite(self.database):
            done = migrate(self.database, backups=settings.data / "backups")
            if done.backup is not None:
                log.info("migrated from %s to %s after a copy to %s", done.before, done.after, done.backup)
        else:
            check_schema(self.database)
        try:
            self.blobs = LocalBlobs(settings.blobs_dir)
        except OSError as error:
            raise Unavailable(
                f"The folder of the blobs {settings.blobs_dir} cannot be used: {error.strerror}.", param="blobs"
            ) from error
        missing = newest_missing(self.database, self.blobs)
        if missing is not None:
            log.warning(
                "the bytes of %s are not in %s: SOUP_BLOBS must be the folder that all servers of this database share",
                missing, settings.blobs_dir,
            )  # fmt: skip
        bootstrap = settings.bootstrap_key
        ensure_admin_key(
            self.database, settings.admin_key_path, None if bootstrap is None else bootstrap.get_secret_value()
        )

    # --- base models ----------------------------------------------------------------------------

    def _prepare_bases(self) -> None:
        """See that the files of every base model are there, and load as many as fit where the settings say so."""
        for base_id in self.bases:
            self._allowed.shape(base_id)
        if not self.settings.preload:
            return
        self.engine.preload(list(self.bases))
        for base_id in sorted(set(self.bases) - set(self.engine.bases_held())):
            log.warning(
                "base model %s (%d bytes) %s: SOUP_MEMORY_BYTES is %d",
                base_id, self._allowed.size(base_id),
                "is loaded at its first use" if self.fits(base_id) else "can never be loaded",
                self.settings.memory_bytes,
            )  # fmt: skip

    def fits(self, base_id: str) -> bool:
        """Whether the memory budget holds a base model at all."""
        budget = self.settings.memory_bytes
        return budget is None or self._allowed.size(base_id) <= budget

    def base(self, base_id: str) -> BaseText:
        """Tokenizer and shape of a base model of the allowlist; its weights are the engine's. NotFound, Unavailable."""
        return self._allowed.text(base_id)

    def shape(self, base_id: str) -> BaseShape:
        """What adapters of a base model must fit, without loading it; raises NotFound or Unavailable."""
        return self._allowed.shape(base_id)

    def shapes(self) -> Mapping[str, BaseShape]:
        """The shape of every base model of the allowlist, by id."""
        return {base_id: self.shape(base_id) for base_id in self.bases}

    # --- what runs on them ----------------------------------------------------------------------

    def encoders(self, base_id: str) -> Mapping[str, Encoder]:
        """The encoders of a base model by digest: its own hidden states, and sentence-BERT where it is installed."""
        shape = self.shape(base_id)
        own = MeanPoolEncoder(
            shape.fingerprint, shape.hidden_size, lambda texts: self.engine.embed(base_id, texts, patient=True)
        )
        found: dict[str, Encoder] = {own.digest: RememberedEncoder(own, self._vectors)}
        try:
            found[self.sentence_bert.digest] = RememberedEncoder(self.sentence_bert, self._vectors)
        except Unavailable as error:
            log.warning("sentence-BERT is left out: %s", error.message)
        return found

    def handle(self, row: AdapterRow) -> AdapterHandle:
        """How the engine gets this adapter: its blob, checked against the adapter's digest when it is read."""

        def load() -> Mapping[str, Tensor]:
            tensors = load_tensors(self.blobs.read(row.weights_blob))
            if adapter_digest(row.base_fingerprint, row.config, tensors) != row.digest:
                raise Internal(f"The stored weights of {row.ref} are not those of its digest.")
            return tensors

        return AdapterHandle(row.digest, row.config, load, row.size_bytes)
