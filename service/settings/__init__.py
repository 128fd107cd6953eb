"""Settings of the server and of the command line, read from the environment.

`adaptersoup.vllm.settings` adds those of vLLM's plugin, and `registry.tasks.ray_connection` reads Ray's own variables;
no other module of the installed packages reads the environment. Settings are values: nothing is opened or created here.
`places` has folders, bucket and Ray, `sizes` the limits of requests, `quotas` those of keys and namespaces, and
retention. The rest is here. Names in the environment carry the prefix SOUP_ (`SOUP_DATABASE_URL`); sizes are bytes,
times seconds.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, SecretStr, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from registry.errors import InvalidParameter
from service.settings.places import DEFAULT_DATA, PlaceSettings, RaySettings
from service.settings.quotas import QuotaSettings, RetentionSettings
from service.settings.sizes import MIB, SizeSettings

ORIGIN = re.compile(r"https?://[a-z0-9.-]+(:[0-9]{1,5})?|https?://\[[0-9a-f:]+\](:[0-9]{1,5})?")
"""An origin in the form that browsers send: in lower case, without a path."""
DEFAULT_URL = "http://127.0.0.1:8000"


class Settings(PlaceSettings, RaySettings, SizeSettings, QuotaSettings, RetentionSettings):
    """Settings of the server. Every field has a default: `soup serve` needs none but `bases` to be useful."""

    model_config = SettingsConfigDict(env_prefix="SOUP_", extra="ignore", frozen=True, env_ignore_empty=True)

    # --- where things are ---------------------------------------------------------------------------
    bases: Path | None = Field(None, description="TOML file with the allowlist of base models; none serves no model.")
    database_url: SecretStr | None = Field(
        None, description="`postgresql+psycopg://USER:PASSWORD@HOST/NAME`; by default SQLite in the data folder."
    )
    database_pool: int = Field(16, ge=1, le=1000, description="Database connections, and threads that serve requests.")
    accept_database: bool = Field(
        False, description="Start with a database that is not the blobs' own: what it does not name is set aside."
    )

    # --- several servers over one database ----------------------------------------------------------
    role: Literal["all", "api", "worker"] = Field(
        "all", description="`api` answers and runs no jobs, `worker` runs jobs and answers health checks alone."
    )
    replica_beat_seconds: float = Field(
        2.0, ge=0.1, le=60, description="How often a server says on PostgreSQL that it is there; two missed: it is out."
    )

    # --- listening ----------------------------------------------------------------------------------
    host: str = Field("127.0.0.1", description="Address to listen on.")
    port: int = Field(8000, ge=0, le=65535, description="Port to listen on; 0 takes a free one and prints it.")
    max_connections: int = Field(
        1000, ge=1, description="Connections at once; fewer where too few files may be open. No key has more than half."
    )
    header_seconds: float = Field(10.0, gt=0, description="How long a client may take to send a request's headers.")
    body_seconds: float = Field(30.0, gt=0, description="How long nothing may come of a body that is not whole: 408.")
    answer_seconds: float = Field(
        30.0, gt=0, description="How long a client may take nothing of an answer that waits for it: it is cut off."
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="Level of the JSON log.")

    otel_endpoint: str | None = Field(
        None,
        pattern=r"^https?://[^\s?#@]+$",
        description="Collector of OpenTelemetry traces (OTLP over HTTP, `http://127.0.0.1:4318`); the standard OTEL_ "
        "variables set the rest; none: no traces.",
    )

    # --- who may do what ----------------------------------------------------------------------------
    bootstrap_key: SecretStr | None = Field(None, description="Secret of the admin key at the first start (compose).")
    no_auth: bool = Field(False, description="Serve without keys: checks Host, refuses foreign Origin and proxies.")
    allowed_hosts: Annotated[tuple[str, ...], NoDecode] = Field(
        ("localhost", "127.0.0.1", "::1"), description="Host names accepted under `no_auth`, separated by commas."
    )
    oidc_issuer: str | None = Field(
        None,
        description="Issuer of OpenID Connect tokens that are taken like keys, as they name it (`https://...`); none: "
        "keys alone.",
    )
    oidc_audience: Annotated[tuple[str, ...], NoDecode] = Field(
        (), description="What a token must be for (`aud`); several, one of which suffices, separated by commas."
    )
    oidc_mapping: Path | None = Field(
        None, description="TOML file: which values of a token's claims bring which scopes, in which namespaces."
    )
    oidc_leeway_seconds: float = Field(
        30.0, ge=0, le=300, description="How far the issuer's clock and this one may be apart."
    )
    oidc_max_identities: int = Field(
        10_000, ge=1, le=1_000_000, description="Callers that may come with tokens, ever; a new one beyond it is 403."
    )
    pages: bool = Field(True, description="Serve pages for a browser at /; false leaves them out.")
    pages_session_seconds: float = Field(
        43_200.0, ge=60, le=2_592_000, description="How long a browser that signed in stays so."
    )
    pages_secure: bool = Field(
        False, description="Cookies go by TLS alone, also where a proxy does not say that a request did."
    )
    auto_model: bool = Field(
        True, description="'auto' as a model has the server mix the adapters that a prompt is most like."
    )
    cors_origins: Annotated[tuple[str, ...], NoDecode] = Field(
        (), description="Origins whose pages may call /v1 from a browser, with a key, separated by commas; * is any."
    )
    docs_public: bool = Field(True, description="/docs, /openapi.json and /manual answer without a key.")
    manual: Path | None = Field(None, description="Folder of the documentation (`make docs`) to serve at /manual.")
    metrics_public: bool = Field(
        False, description="/metrics answers without a key; otherwise it needs scope admin, for all namespaces."
    )

    # --- engine -------------------------------------------------------------------------------------
    engine_queue: int = Field(
        256, ge=1, description="Requests the engine holds at once; beyond it 429 for keys that have their part of it."
    )
    engine_queue_tokens: int = Field(
        1_000_000, ge=1, description="Tokens still to compute of all requests held at once; beyond it the same."
    )
    engine_batch_tokens: int = Field(2048, ge=16, description="Tokens of one forward pass.")
    engine_kv_bytes: int = Field(
        2**30, ge=1, description="Bytes of keys and values of all sequences, and of what is kept of ended ones."
    )
    engine_share_prompts: Literal["off", "namespace", "all"] = Field(
        "namespace",
        description="Which keys share computed prompts: `namespace` (those of the same namespaces), `all`, or `off`.",
    )
    engine_rows: int = Field(16, ge=1, description="Sequences that generate together.")
    adapter_bank_bytes: int = Field(
        512 * MIB, ge=0, description="Memory for adapters held ready, least recent dropped; a larger one is refused."
    )
    memory_bytes: int | None = Field(
        None, ge=1, description="Memory for weights of base models and adapters, least recent dropped; none: no limit."
    )
    threads: int | None = Field(None, ge=1, description="Threads of torch; by default what torch takes.")
    preload: bool = Field(True, description="Load base models at start, as many as fit, not at their first use.")
    ready_seconds: float = Field(10.0, ge=0, description="How long /readyz repeats its last answer.")

    # --- jobs ---------------------------------------------------------------------------------------
    job_workers: int = Field(
        1, ge=0, le=64, description="Cooks at once, and samples embedded at once; 0 leaves them queued."
    )
    job_queue_per_key: int = Field(
        100, ge=1, description="Jobs of one kind that a key may have waiting and running; beyond it 429."
    )
    job_queue: int = Field(1000, ge=1, description="Jobs of one kind that wait and run in all; beyond it 429.")
    job_lease_seconds: float = Field(60.0, gt=0, description="A job without a heartbeat for this long is run again.")
    job_attempts: int = Field(
        3,
        ge=1,
        description="Tries of a job that fails for a passing reason, or whose server ends before it came further.",
    )
    refit_delay_seconds: float = Field(2.0, ge=0, description="A pool is refitted this long after its last change.")
    selector_idle_days: int = Field(
        30,
        ge=0,
        le=36_500,
        description="A selector that nobody asked for in so long is refitted when it is asked for; 0: none is idle.",
    )
    wait_seconds: float = Field(30.0, ge=0, description="How long a request waits for its job before it answers 202.")
    max_wait_seconds: float = Field(300.0, ge=0, description="The longest `wait` a request may ask for.")
    default_effort: Literal["instant", "quick", "thorough"] = Field(
        "quick", description="Effort of a cook that names no effort, selector or recipe."
    )

    # --- trainings ----------------------------------------------------------------------------------
    trainings: Path | None = Field(
        None, description="Folder of what trainings save on the way; by default in the data folder."
    )
    training_workers: int = Field(
        1, ge=0, le=64, description="Trainings at once, each a process; 0 leaves them queued."
    )
    gradients_idle_seconds: float = Field(
        60,
        ge=0,
        le=86_400,
        description="How long the process that computes gradients keeps its base model for the next cook.",
    )
    training_queue: int = Field(100, ge=1, description="Trainings that wait or run; beyond it 429.")
    max_training_bytes: int = Field(256 * MIB, ge=1, description="Largest blob of training data.")
    max_training_steps: int = Field(
        100_000, ge=1, description="Most passes of a training: steps times `accumulate`, and pruning's."
    )
    max_training_tokens: int = Field(65_536, ge=1, description="Largest batch times block of a training.")
    keep_training_seconds: float = Field(
        14 * 86_400.0, ge=0, description="How long what a stopped training saved is kept, for the same to go on from."
    )

    @field_validator("allowed_hosts", "oidc_audience", "cors_origins", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        return tuple(item.strip() for item in value.split(",") if item.strip()) if isinstance(value, str) else value

    @field_validator("cors_origins")
    @classmethod
    def _are_origins(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for origin in value:
            if origin != "*" and ORIGIN.fullmatch(origin) is None:
                raise ValueError(
                    f"{origin!r} is not an origin such as https://app.example.com, with a port if it has one"
                )
        return value

    @model_validator(mode="after")
    def _other_origins_need_keys(self) -> Self:
        if self.no_auth and self.cors_origins:
            raise ValueError("cors_origins and no_auth exclude each other: without keys, no other origin is allowed")
        return self

    @property
    def database(self) -> str:
        """The SQLAlchemy URL in force; it may hold a password."""
        if self.database_url is not None:
            return self.database_url.get_secret_value()
        return f"sqlite:///{(self.data / 'soup.db').as_posix()}"

    @property
    def trainings_dir(self) -> Path:
        """Folder of what trainings save on the way."""
        return self.trainings or self.data / "trainings"

    @property
    def admin_key_path(self) -> Path:
        """File that holds the admin key on this machine (mode 0600)."""
        return self.data / "admin.key"


class ClientSettings(BaseSettings):
    """Settings of the client and the command line; flags win over the environment."""

    model_config = SettingsConfigDict(env_prefix="SOUP_", extra="ignore", frozen=True, env_ignore_empty=True)

    url: str = Field(DEFAULT_URL, description="Address of the server.")
    key: SecretStr | None = Field(
        None, description="Key to send; by default the data folder's `admin.key`, if readable."
    )
    data: Path = Field(DEFAULT_DATA, description="Data folder of a server on this machine.")
    timeout: float = Field(600.0, gt=0, description="Seconds to wait for an answer.")

    def secret(self) -> str | None:
        """Return the key to send: the setting, else the admin key of this machine's server, else None.

        Raises InvalidParameter if the key holds anything but printable ASCII (it travels in a header).
        """
        if self.key is not None:
            text = self.key.get_secret_value().strip()
        else:
            try:
                text = (self.data / "admin.key").read_text(encoding="ascii").strip()
            except (OSError, UnicodeDecodeError):
                return None
        if not text.isascii() or not text.isprintable():
            raise InvalidParameter("The key holds characters a header cannot carry.", param="key")
        return text or None


SPINS = "10000"
"""Rounds of libgomp's busy waiting: some 100 microseconds."""


def calm_threads() -> None:
    """Limit the busy waiting of torch's threads and give numpy one thread; call it before importing them.

    Variables that the operator has set win. OpenMP's default is to busy-wait for milliseconds: on a machine where
    anything else runs, decoding one token at a time becomes ten times slower. Threads that sleep at once are woken for
    each operation, and small ones take five times as long. Threads of numpy's OpenBLAS are made for larger products
    than ours, and wait for each other if cores are busy. Their number also changes the results of sums.
    """
    for name, value in calm_variables().items():
        os.environ.setdefault(name, value)


def calm_variables() -> dict[str, str]:
    """The environment variables that limit busy waiting, without those that the operator's wait policy replaces."""
    calm = {"OPENBLAS_NUM_THREADS": "1"}
    return calm if "OMP_WAIT_POLICY" in os.environ else {**calm, "GOMP_SPINCOUNT": SPINS}
