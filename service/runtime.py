"""The life cycle of a server: its services are built, started and stopped here; no other module has global state.

`soup serve` and tests build a Runtime from settings, `start` it, give it to `create_app`, `join`, and `stop` it. Two
can live in one process, over two data folders. Base models are loaded and run by the engine only.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING

from registry.base_model import position_bytes, read_allowlist
from registry.blobs import ServerBlobs, open_blobs
from registry.catalogue.database import Database
from registry.context import Refits, Registry, Retention
from registry.errors import InvalidParameter, Unavailable
from registry.names import sha256_digest
from registry.spec import DefaultLimits, UseLimits
from registry.spec.limits import SampleLimits, SizeLimits, UploadLimits
from registry.uploads.sessions import UploadSessions
from service.access.identities import identities_of
from service.access.key_watch import WRITE_INTERVAL, KeyWatch
from service.access.keys import ensure_admin_key
from service.base_models import ServedBaseModels
from service.engine import EngineLimits
from service.engine.bases import AllowedBases
from service.engine.kv_budget import row_capacity
from service.engine.limits import smallest_adapter_bytes
from service.engine.text_calls import EngineCalls
from service.engine_process.child import EngineChild
from service.engine_process.client import ProcessEngine
from service.engine_process.plan import plan_of
from service.job_board import JobBoard
from service.jobs.runner import JobRunner
from service.observability.usage import UsageCounts
from service.operations import storage
from service.operations.blob_check import check_blobs
from service.periodic import Periodic
from service.presence import Presence
from service.rates import Rates, SharedRates
from service.services import Services
from service.settings import Settings

if TYPE_CHECKING:
    from service.observability.tracing import Tracing

log = logging.getLogger("soup.runtime")

STOP_SECONDS = 20.0
"""Default seconds that jobs and requests in the engine may take to end."""


class Runtime:
    """The life cycle of one server; `services` and `jobs` exist from `start` on.

    The engine runs in `engine_child`, or without one in this process. Building a Runtime only reads the allowlist;
    raises InvalidParameter if that is wrong.
    """

    services: Services
    jobs: JobRunner

    def __init__(self, settings: Settings, *, engine_child: EngineChild | None = None) -> None:
        self.settings = settings
        check_role(settings)
        self.database = Database(settings.database, pool_size=settings.database_pool)
        allowed = AllowedBases({} if settings.bases is None else read_allowlist(settings.bases), settings.cache)
        self.engine = engine_of(settings, allowed, child=engine_child)
        self.bases = ServedBaseModels(allowed, self.engine, settings)
        self.key_watch = KeyWatch(self.database)
        self.identities = identities_of(settings, self.key_watch)
        self.tracing = tracing_of(settings)
        self.presence: Presence | None = None
        """Its registration among the servers of a shared database, made by `join`."""
        self._open = ExitStack()
        self._stop_at: float | None = None
        self._at_work = False

    @property
    def _preloads(self) -> list[str]:
        """Base models to load at the start; on Ray the replicas load them."""
        return list(self.bases) if self.settings.preload and self.settings.ray_address is None else []

    @property
    def sole_owner(self) -> bool:
        """True if no other server uses database and blobs: they are in the data folder, which has one owner."""
        return self.settings.database_url is None and self.settings.blobs is None

    def start(self, *, wait: bool = True, is_owned: bool = False) -> None:
        """Own the data folder, migrate, write the admin key, start the engine, load base models, start the jobs.

        With `wait` false base models may be loading when it returns: call `wait_for_bases`, which starts the jobs. With
        `is_owned` the caller owns the data folder until `stop` has returned.

        Raises Unavailable if the folder has another owner, the schema is old, or a base model cannot be loaded. Raises
        InvalidParameter if the adapter cache is too small for any adapter, or the KV cache for a sequence. Nothing is
        left running after an error.
        """
        with ExitStack() as stack:
            if not is_owned:
                stack.enter_context(storage.owned(self.settings.data))
            stack.callback(self._stop_tracing)
            stack.callback(self.database.close)
            blobs = self._prepare_data()
            self._check_bases()
            if self.identities is not None:
                self.identities.begin()
            if self.tracing is not None:
                self.database.traceparent = self.tracing.traceparent
                self.tracing.instrument_database(self.database.engine)
            self.services = self._build_services(blobs)
            for writing in self._writers():
                writing.start()
                stack.callback(self._stop_writing, writing)  # after the engine: requests are counted as they end
            self._preloaded = self.engine.start(self._preloads)
            stack.callback(self._stop_engine)
            self.jobs = JobRunner(self.services, sole_owner=self.sole_owner)
            stack.callback(self._stop_jobs)
            if self.presence is not None:
                stack.callback(self.presence.leave)
            if wait:
                self.wait_for_bases()
            self._open = stack.pop_all()

    def wait_for_bases(self) -> None:
        """Start the jobs once base models are loaded, as many as fit; raises Unavailable if one cannot be loaded.

        They start afterwards, because a load that ends the process would count as an attempt of every running job.
        """
        self._preloaded.result()
        self.jobs.start()
        for base_id in sorted(set(self._preloads) - set(self.engine.loaded_bases())):
            log.warning(
                "base model %s (%d bytes) %s: SOUP_MEMORY_BYTES is %d",
                base_id,
                self.bases[base_id].size,
                "is loaded at its first use" if self.bases[base_id].fits else "can never be loaded",
                self.settings.memory_bytes,
            )

    def join(self) -> None:
        """Register among the servers of the database, once this one listens.

        Raises Incompatible if one of them has another state of a base model.
        """
        if self.presence is not None:
            self.presence.join()

    def begin_stop(self) -> None:
        """Return jobs to the queue while requests are still answered, and wake requests that wait for jobs."""
        self.jobs.begin_stop()

    def stop(self, *, seconds: float = STOP_SECONDS) -> bool:
        """Stop the jobs, then the engine, close the database, unlock the data folder. A second call does nothing.

        Returns False if a thread still runs after `seconds`; the process should then end.
        """
        self._stop_at = time.monotonic() + seconds
        self._open.close()
        return not self._at_work

    def _stop_jobs(self) -> None:
        """Stop the jobs within half of the time, which leaves the rest to the engine."""
        self._at_work |= not self.jobs.stop(seconds=self._remaining() / 2)

    def _stop_engine(self) -> None:
        seconds = self._remaining() / 2
        self._at_work |= not self.engine.stop(drain=seconds, patience=seconds)

    def _writers(self) -> Iterator[Periodic]:
        """The threads that write counts to the database: of usage, keys and, if servers share them, rates."""
        usage, keys = self.services.usage.write, self.key_watch.write
        yield Periodic("writing usage", self.settings.usage_seconds, usage, last=usage)
        yield Periodic("writing the use of keys", WRITE_INTERVAL, keys, last=keys)
        if isinstance(self.services.rates, SharedRates):
            yield self.services.rates.settling

    def _stop_writing(self, writing: Periodic) -> None:
        """Write the rest; takes at least a second, as unwritten counts are lost."""
        self._at_work |= not writing.stop(seconds=max(1.0, self._remaining()))

    def _stop_tracing(self) -> None:
        if self.tracing is not None:
            self.tracing.close(max(1.0, min(2.0, self._remaining())))

    def _remaining(self) -> float:
        return STOP_SECONDS if self._stop_at is None else max(0.0, self._stop_at - time.monotonic())

    def _build_services(self, blobs: ServerBlobs) -> Services:
        settings = self.settings
        days = settings.selector_idle_days
        refits = Refits(settings.refit_delay_seconds, timedelta(days=days) if days else None)
        registry = Registry(
            self.database,
            blobs,
            self.bases,
            limits_of(settings),
            refits,
            default_effort=settings.default_effort,
            quotas=default_limits(settings),
            retention=retention_of(settings),
        )
        return Services(
            settings=settings,
            registry=registry,
            bases=self.bases,
            engine=self.engine,
            jobs=JobBoard(),
            selections=threading.BoundedSemaphore(max(1, settings.database_pool // 4)),
            uploads=UploadSessions(registry, blobs.uploads(), upload_limits_of(settings)),
            rates=Rates() if storage.is_sqlite(self.database) else SharedRates(self.database),
            usage=UsageCounts(self.database),
            tracing=self.tracing,
            signed_url=_signing(blobs, settings.blobs_presigned_seconds),
        )

    def _prepare_data(self) -> ServerBlobs:
        """Migrate or check the schema, open the blobs, write the admin key."""
        settings = self.settings
        if storage.is_sqlite(self.database):
            done = storage.migrate(self.database, backups=settings.data / "backups")
            if done.backup is not None:
                log.info(
                    "migrated from %s to %s after a copy to %s", done.revision_before, done.revision_after, done.backup
                )
        else:
            storage.check_serves(self.database)
        try:
            blobs = open_blobs(settings.blob_place)
            check_blobs(
                self.database,
                blobs,
                alone=self.sole_owner,
                accept=settings.accept_database,
                today=datetime.now(UTC).date(),
            )
        except OSError as error:
            raise Unavailable(
                f"The folder of the blobs {settings.blob_place.folder} cannot be used: {error.strerror}.", param="blobs"
            ) from error
        bootstrap = settings.bootstrap_key
        ensure_admin_key(
            self.database, settings.admin_key_path, None if bootstrap is None else bootstrap.get_secret_value()
        )
        return blobs

    def _check_bases(self) -> None:
        """Raise Unavailable if files of a base model are missing."""
        for base in self.bases.values():
            _ = base.shape  # raises Unavailable where it cannot be read
            if base.entry.chat_template is not None:
                _ = base.text  # and where the operator's template fails
        self._check_bank()
        self._check_kv_cache()
        if not storage.is_sqlite(self.database):
            fingerprints = {base_id: base.shape.fingerprint for base_id, base in self.bases.items()}
            self.presence = Presence(self.database, self.settings, bases=fingerprints)
            self.presence.check()  # before minutes of loading; `join` looks again

    def _check_bank(self) -> None:
        """Raise InvalidParameter if the adapter cache is too small for an adapter of any base model."""
        capacity = self.settings.adapter_bank_bytes
        least = min(
            (smallest_adapter_bytes(base.shape) for base in self.bases.values() if base.entry.kind == "causal"),
            default=0,
        )
        if capacity < least:
            raise InvalidParameter(
                f"SOUP_ADAPTER_BANK_BYTES is {capacity}, but the smallest adapter of these base models takes "
                f"{least} bytes: raise it.",
                param="adapter_bank_bytes",
            )

    def _check_kv_cache(self) -> None:
        """Raise InvalidParameter if the KV cache is too small for a sequence of a base model."""
        capacity = self.settings.engine_kv_bytes
        for base_id, base in self.bases.items():
            least = row_capacity(1) * position_bytes(base.entry, base.shape)
            if base.entry.kind == "causal" and capacity < least:
                raise InvalidParameter(
                    f"SOUP_ENGINE_KV_BYTES is {capacity}, but the shortest sequence of base model {base_id} takes "
                    f"{least} bytes: raise it.",
                    param="engine_kv_bytes",
                )


def check_role(settings: Settings) -> None:
    """Raise InvalidParameter for a role without work, or without a server to run its jobs."""
    if settings.role == "worker" and not (settings.job_workers or settings.training_workers):
        raise InvalidParameter(
            "SOUP_ROLE is 'worker', which only runs jobs, but SOUP_JOB_WORKERS and SOUP_TRAINING_WORKERS are "
            "0: set one of them, or another role.",
            param="role",
        )
    if settings.role != "all" and settings.database_url is None:
        raise InvalidParameter(
            f"SOUP_ROLE is '{settings.role}', which needs several servers, but SQLite allows only one: set "
            "SOUP_DATABASE_URL, or the role 'all'.",
            param="role",
        )


def engine_of(settings: Settings, allowed: AllowedBases, *, child: EngineChild | None = None) -> EngineCalls:
    """The engine, in the `child` process if there is one; replicas generate if the settings name Ray."""
    limits = EngineLimits.of(settings)
    local: EngineCalls
    if child is not None:
        local = ProcessEngine(allowed, plan_of(settings), child=child)
    else:
        from service.engine.engine import Engine  # heavy: a server with a process does without

        local = Engine(allowed, limits)
    if settings.ray_address is None:
        return local
    from service.ray_serving.engine import RayEngine

    return RayEngine(
        allowed, local, address=settings.ray_address, app=settings.ray_app, seconds=settings.ray_seconds, limits=limits
    )


def _signing(blobs: ServerBlobs, seconds: float) -> Callable[[str], str] | None:
    """A function from a blob's digest to a URL that is valid for some time, None for 0; raises Unavailable if the store
    has none.
    """
    if not seconds:
        return None
    blobs.signed_url(sha256_digest(b""), seconds=seconds)  # else the first download would find out
    return partial(blobs.signed_url, seconds=seconds)


def tracing_of(settings: Settings) -> Tracing | None:
    """The traces for the settings' collector, if any; raises Unavailable if the packages are missing."""
    if settings.otel_endpoint is None:
        return None
    try:
        from service.observability.tracing import Tracing
    except ModuleNotFoundError:
        raise Unavailable(
            "SOUP_OTEL_ENDPOINT needs the OpenTelemetry SDK: pip install 'adaptersoup[otel]'.", param="otel_endpoint"
        ) from None
    return Tracing(settings.otel_endpoint)


def limits_of(settings: Settings) -> SizeLimits:
    """The registry's limits of requests, from the settings."""
    return SizeLimits(
        inline_bytes=settings.max_inline_bytes,
        weights_bytes=settings.max_weights_bytes,
        sample_bytes=settings.max_sample_bytes,
        embeddings_bytes=settings.max_embeddings_bytes,
        sample=SampleLimits(
            minimum=settings.min_passages,
            good=settings.few_passages,
            maximum=settings.max_passages,
            max_chars=settings.max_text_chars,
            characters=settings.max_sample_chars,
        ),
    )


def upload_limits_of(settings: Settings) -> UploadLimits:
    """The limits of uploads in parts, from the settings."""
    return UploadLimits(
        uploads=settings.max_uploads,
        reserved_bytes=settings.max_upload_bytes,
        blob_bytes=settings.max_blob_bytes,
        lifetime=timedelta(seconds=settings.keep_upload_seconds),
    )


def retention_of(settings: Settings) -> Retention:
    """The retention of a collection, from the settings."""
    grace = timedelta(days=settings.collect_days) if settings.collect_days else None
    return Retention(grace, settings.unnamed_soup_days, settings.job_days, settings.usage_days, settings.audit_days)


def default_limits(settings: Settings) -> DefaultLimits:
    """The default limits of keys and namespaces, from the settings."""
    return DefaultLimits(
        key=UseLimits(**{name: getattr(settings, f"key_{name}") for name in UseLimits.model_fields}),
        namespace=UseLimits(**{name: getattr(settings, f"namespace_{name}") for name in UseLimits.model_fields}),
    )
