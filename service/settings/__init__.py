"""Settings of the server and of the command line, read from the environment.

`adaptersoup.vllm.settings` adds those of vLLM's plugin, `registry.tasks.ray_connection` reads Ray's own variables, and
`service.observability.tracing` OpenTelemetry's; no other module of the installed packages reads the environment.
Settings are values: nothing is opened or created here.
`places` has folders, bucket and Ray, `limits` the limits of requests, keys and namespaces, and when unused objects are
removed. The rest is here. Names in the environment carry the prefix SOUP_ (`SOUP_DATABASE_URL`); sizes are bytes, times
seconds.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from registry.names import LOOPBACK
from registry.spec import Effort
from service.settings.limits import MIB, Bytes, LimitSettings, Seconds
from service.settings.places import DEFAULT_DATA, PlaceSettings

ORIGIN = re.compile(r"https?://[a-z0-9.-]+(:[0-9]{1,5})?|https?://\[[0-9a-f:]+\](:[0-9]{1,5})?")
"""An origin in the form that browsers send: in lower case, without a path."""
DEFAULT_URL = "http://127.0.0.1:8000"


class Settings(PlaceSettings, LimitSettings):
    """Settings of the server. Every field has a default: `soup serve` needs none but `bases` to be useful."""

    model_config = SettingsConfigDict(env_prefix="SOUP_", extra="ignore", frozen=True, env_ignore_empty=True)

    # --- where things are ---------------------------------------------------------------------------
    bases: Path | None = Field(
        None, description="TOML file that lists the base models which the server can run. Unset: no base model."
    )
    database_url: SecretStr | None = Field(
        None,
        description="URL of a PostgreSQL database: `postgresql+psycopg://USER:PASSWORD@HOST/NAME`. Unset: SQLite in "
        "the data folder.",
    )
    database_pool: int = Field(
        16, ge=1, le=1000, description="Maximum number of database connections, and of threads that serve requests."
    )
    accept_database: bool = Field(
        False,
        description="Start although database and blobs do not belong together. A server on SQLite without `SOUP_BLOBS` "
        "moves blobs that the database does not name to the folder `set-aside`. Set this variable for one start only.",
    )

    # --- several servers over one database ----------------------------------------------------------
    role: Literal["all", "api", "worker"] = Field(
        "all",
        description="`all`: answer requests and run jobs. `api`: answer requests only. `worker`: run jobs, and answer "
        "only `/healthz`, `/readyz` and `/metrics`.",
    )
    replica_beat_seconds: float = Field(
        2.0,
        ge=0.1,
        le=60,
        description="Interval of a server's heartbeats in PostgreSQL. The other servers count it as dead after 2.5 "
        "intervals without a heartbeat.",
    )

    # --- listening ----------------------------------------------------------------------------------
    host: str = Field("127.0.0.1", description="Address to listen on.")
    port: int = Field(8000, ge=0, le=65535, description="Port to listen on. 0: any free port, which the server prints.")
    max_connections: int = Field(
        1000,
        ge=1,
        description="Maximum number of open connections, lower if the process can open too few files. One key can use "
        "at most half of them; 429 beyond it.",
    )
    header_seconds: Seconds = Field(
        10.0, gt=0, description="How long a client may take to send the headers of a request; then 408."
    )
    body_seconds: Seconds = Field(30.0, gt=0, description="Longest pause in a request body; then 408.")
    answer_seconds: Seconds = Field(
        30.0,
        gt=0,
        description="If a client reads nothing of a waiting answer for this long, the server closes the connection.",
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="Lowest level that the JSON log contains: `debug`, `info`, `warning` or `error`."
    )

    otel_endpoint: str | None = Field(
        None,
        pattern=r"^https?://[^\s?#@]+$",
        description="URL of an OpenTelemetry collector for traces (OTLP over HTTP), such as `http://127.0.0.1:4318`. "
        "The standard `OTEL_` variables set the rest. Unset: no traces.",
    )

    # --- who may do what ----------------------------------------------------------------------------
    bootstrap_key: SecretStr | None = Field(
        None,
        description="Secret of the admin key, which each start writes to `admin.key`: `sk-soup-` and 43 characters of "
        "URL-safe base64. Set the same secret on all servers of a database. Unset: the first start makes "
        "one.",
    )
    no_auth: bool = Field(False, description="Serve without keys, to this machine only (see below).")
    allowed_hosts: Annotated[tuple[str, ...], NoDecode] = Field(
        ("localhost", "127.0.0.1", "::1"), description="Host names that a request can name if `SOUP_NO_AUTH` is set."
    )
    oidc_issuer: str | None = Field(
        None,
        description="URL of an OpenID Connect issuer (`https://...`), as in the `iss` of its tokens. The server "
        "accepts these tokens like keys. Unset: only keys.",
    )
    oidc_audience: Annotated[tuple[str, ...], NoDecode] = Field(
        (), description="Accepted audiences of a token (`aud`), separated by commas; required with `SOUP_OIDC_ISSUER`."
    )
    oidc_mapping: Path | None = Field(
        None,
        description="TOML file that maps the claims of a token to scopes and namespaces; required with "
        "`SOUP_OIDC_ISSUER`.",
    )
    oidc_leeway_seconds: float = Field(
        30.0, ge=0, le=300, description="Maximum difference between the clocks of the issuer and of this server."
    )
    oidc_max_identities: int = Field(
        10_000,
        ge=1,
        le=1_000_000,
        description="Maximum number of different callers with tokens, over the life of the database; a new caller "
        "beyond it gets 403.",
    )
    pages: bool = Field(True, description="Serve pages for browsers at `/`.")
    pages_session_seconds: float = Field(
        43_200.0, ge=60, le=2_592_000, description="How long a browser stays signed in."
    )
    pages_secure: bool = Field(
        False,
        description="Send the cookies of the pages over TLS only, for every request. By default, the server does so "
        "for requests that came by TLS, which a proxy reports in `X-Forwarded-Proto`.",
    )
    auto_model: bool = Field(
        True,
        description="Accept the model `auto`: the server mixes the adapters whose samples are most like the prompt.",
    )
    cors_origins: Annotated[tuple[str, ...], NoDecode] = Field(
        (),
        description="Origins whose pages can call `/v1` from a browser, with a key, separated by commas. `*`: any "
        "origin. Unset: none.",
    )
    docs_public: bool = Field(True, description="Serve `/docs`, `/openapi.json` and `/manual` without a key.")
    manual: Path | None = Field(
        None,
        description="Folder of the documentation that `make docs` writes, to serve at `/manual`. Unset: no manual.",
    )
    metrics_public: bool = Field(
        False,
        description="Serve `/metrics` without a key. Otherwise it needs a key with scope `admin` for all namespaces.",
    )

    # --- engine -------------------------------------------------------------------------------------
    engine_queue: int = Field(
        256,
        ge=1,
        description="Maximum number of requests in the engine. Beyond it, a key that already has its equal share gets "
        "429.",
    )
    engine_queue_tokens: int = Field(
        1_000_000,
        ge=1,
        description="Maximum number of tokens still to compute for all requests in the engine. Beyond it, a key that "
        "already has its equal share gets 429.",
    )
    engine_batch_tokens: int = Field(
        2048, ge=16, description="Maximum number of prompt tokens and scored tokens in one forward pass."
    )
    engine_kv_bytes: Bytes = Field(
        2**30,
        ge=1,
        description="Memory for keys and values of running requests and of the prompt cache together; 400 for a "
        "request that needs more.",
    )
    engine_share_prompts: Literal["off", "namespace", "all"] = Field(
        "namespace",
        description="Which keys share the prompt cache: `namespace` (keys with the same namespaces), `all`, or `off` "
        "(no prompt cache).",
    )
    engine_rows: int = Field(16, ge=1, description="Maximum number of sequences that generate together.")
    adapter_bank_bytes: Bytes = Field(
        512 * MIB,
        ge=0,
        description="Memory for loaded adapters. The server unloads the least recently used first; 400 for an adapter "
        "that is larger.",
    )
    memory_bytes: Bytes | None = Field(
        None,
        ge=1,
        description="Memory for the weights of base models and adapters together. The server unloads the least "
        "recently used first. Unset: no limit.",
    )
    threads: int | None = Field(
        None, ge=1, le=1024, description="Number of threads that torch uses. Unset: torch's default."
    )
    preload: bool = Field(
        True,
        description="Load base models at the start, as many as fit into `SOUP_MEMORY_BYTES`. Otherwise each is loaded "
        "at its first use.",
    )
    ready_seconds: Seconds = Field(
        10.0, ge=0, description="How long `/readyz` repeats its last answer before it checks again."
    )

    # --- jobs ---------------------------------------------------------------------------------------
    job_workers: int = Field(
        1,
        ge=0,
        le=64,
        description="Number of quick cooks (effort `instant`, or by recipe) at once, and of samples that are embedded "
        "at once. Other cooks, fits and evaluations run one at a time. 0: all of these stay queued.",
    )
    job_queue_per_key: int = Field(
        100,
        ge=1,
        description="Maximum number of waiting and running jobs of one kind of one key, without the fits that pushes "
        "queue; 429 beyond it.",
    )
    job_queue: int = Field(
        1000,
        ge=1,
        description="Maximum number of waiting and running jobs of one kind of all keys together, without the fits "
        "that pushes queue; 429 beyond it.",
    )
    job_lease_seconds: Seconds = Field(
        60.0, gt=0, description="If a running job sends no heartbeat for this long, it returns to the queue."
    )
    job_attempts: int = Field(
        3,
        ge=1,
        description="Maximum number of attempts of a job that fails for a temporary or unexpected reason, or whose "
        "server ends. A training counts them anew when its checkpoint advances.",
    )
    refit_delay_seconds: Seconds = Field(
        2.0,
        ge=0,
        description="Delay between a change of a pool and the fit of its selector. Changes within the delay need only "
        "one fit.",
    )
    selector_idle_days: int = Field(
        30,
        ge=0,
        le=36_500,
        description="A selector without requests for this many days is idle: the server fits it again at its next "
        "request, not when its pool changes. 0: no selector is idle.",
    )
    wait_seconds: Seconds = Field(
        30.0, ge=0, description="How long a request without `wait` waits for its job; then 202."
    )
    max_wait_seconds: Seconds = Field(300.0, ge=0, description="Maximum `wait` of a request; 400 beyond it.")
    default_effort: Effort = Field(
        "tune",
        description="Effort of a cook that sets no effort, selector or recipe. A soup of `tune` learns the sample. "
        "`quick` replaces it if the namespace forbids it, or the sample or the adapters cannot be tuned. A cook that "
        "sets `mixing`, `single` or `verify` false, or is for an encoder, gets `instant`.",
    )

    # --- trainings ----------------------------------------------------------------------------------
    trainings: Path | None = Field(
        None, description="Folder of the saved states of trainings; by default `trainings` in the data folder."
    )
    training_workers: int = Field(
        1, ge=0, le=64, description="Number of trainings at once, each in its own process. 0: they stay queued."
    )
    gradients_idle_seconds: float = Field(
        60,
        ge=0,
        le=86_400,
        description="How long the process that computes gradients keeps its base model in memory after a cook.",
    )
    training_queue: int = Field(
        100, ge=1, description="Maximum number of waiting and running trainings of all keys together; 429 beyond it."
    )
    max_training_bytes: Bytes = Field(
        256 * MIB, ge=1, description="Maximum size of a blob of training data; 413 beyond it."
    )
    max_training_steps: int = Field(
        100_000,
        ge=1,
        description="Maximum number of passes of a training: steps times `accumulate`, plus the passes that score "
        "what to prune; 413 beyond it.",
    )
    max_training_tokens: int = Field(
        65_536,
        ge=1,
        description="Maximum number of tokens in a pass of a training: `batch` times the length of a block with its "
        "prefix; 413 beyond it.",
    )
    keep_training_seconds: Seconds = Field(
        14 * 86_400.0,
        ge=0,
        description="How long the server keeps the saved state of a stopped training. Within this time, the same "
        "request continues the training.",
    )

    @field_validator("allowed_hosts", "oidc_audience", "cors_origins", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        return tuple(item.strip() for item in value.split(",") if item.strip()) if isinstance(value, str) else value

    @field_validator("allowed_hosts")
    @classmethod
    def _as_hostnames(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(host.lower().strip("[]") for host in value)  # as in a parsed Host header

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
        None,
        description="Key that the client sends. Unset: to a server at `localhost`, `127.0.0.1` or `::1`, the key in "
        "`admin.key` of the data folder, if it is readable; to other servers none.",
    )
    data: Path = Field(DEFAULT_DATA, description="Data folder of a server on this machine, for its `admin.key`.")
    timeout: Seconds = Field(600.0, gt=0, description="How many seconds the client waits for an answer.")

    def secret(self) -> str | None:
        """Return the key to send: the setting, else the admin key for a server on this machine, else None."""
        if self.key is not None:
            return self.key.get_secret_value()
        try:
            if urlsplit(self.url).hostname not in LOOPBACK:  # the key is a secret of this machine
                return None
            return (self.data / "admin.key").read_text(encoding="ascii").strip() or None
        except (OSError, ValueError):  # unreadable, or no address
            return None


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
