"""Putting inference replicas on a Ray cluster, looking at them, and taking them away. Called by `soup ray`.

Serve's proxies are not started: they take requests from whoever reaches them, and replicas ask for no key. A server
speaks to replicas through a handle, which Ray lets use nobody without the cluster's token.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from registry.errors import NotFound, Unavailable
from service.observability.logs import configure_logging
from service.settings import calm_variables

if TYPE_CHECKING:  # torch, which those who only look or remove do without
    from service.ray_serving.plan import ReplicaPlan
    from service.ray_serving.wire import ReplicaMessage, ReplicaRequest

DEPLOYMENT = "replica"
REPORTED_ADAPTERS = 256
"""Digests that a replica says it has had last: of two that are free, a request goes to one that has had its own."""


GRACE_SECONDS = 30.0
"""How long a replica that is taken away, or exchanged, may go on answering; then its streams end with a sentence."""


@dataclass(frozen=True)
class Scale:
    """How many replicas there are, and when there are more.

    `wanted` requests under way at each is what Ray aims at by adding replicas (up to `most`) and taking some away (down
    to `least`); one is given `held` at once, and `queued` wait at each server.
    """

    least: int
    most: int
    wanted: float
    held: int
    queued: int
    up_seconds: float = 10.0
    down_seconds: float = 300.0


@dataclass(frozen=True)
class Resources:
    """What a replica takes of its node."""

    cpus: float
    gpus: float = 0.0


def deploy(name: str, plan: ReplicaPlan, scale: Scale, resources: Resources, *, seconds: float) -> None:
    """Put replicas on the cluster that this process is connected to, or change those that are there.

    Returns once the least number of them is running; raises Unavailable, with what Ray says, where that fails or takes
    longer than `seconds`.
    """
    from ray import serve

    serve.start(proxy_location="Disabled", logging_config=_quiet())
    made: Any = serve.deployment(
        _served(),
        name=DEPLOYMENT,
        max_ongoing_requests=scale.held,
        max_queued_requests=scale.queued,
        ray_actor_options={
            "num_cpus": resources.cpus, "num_gpus": resources.gpus, "runtime_env": {"env_vars": calm_variables()},
        },
        autoscaling_config={
            "min_replicas": scale.least, "max_replicas": scale.most, "initial_replicas": scale.least,
            "target_ongoing_requests": scale.wanted,
            "upscale_delay_s": scale.up_seconds, "downscale_delay_s": scale.down_seconds,
        },
        graceful_shutdown_timeout_s=GRACE_SECONDS,
        health_check_period_s=5.0,
        health_check_timeout_s=30.0,
    )  # fmt: skip
    target = serve.RunTarget(made.bind(plan.model_dump_json()), name=name, route_prefix=None)
    serve.run_many([target], wait_for_applications_running=False)
    _wait(name, seconds)


def _wait(name: str, seconds: float) -> None:
    """Wait for the replicas of an application."""
    until = time.monotonic() + seconds
    while True:
        found = state_of(name)
        if found["status"] == "RUNNING":
            return
        if found["status"] == "DEPLOY_FAILED" or time.monotonic() > until:
            raise Unavailable(f"The replicas '{name}' do not start ({found['status']}): {found['message'][:2000]}")
        time.sleep(0.2)


def state_of(name: str) -> dict[str, Any]:
    """What Ray says of an application: its status, message, and replicas by their state; raises NotFound."""
    from ray import serve

    application = serve.status().applications.get(name)
    if application is None:
        raise NotFound(f"There are no replicas '{name}' on this cluster: `soup ray deploy` puts some there.")
    deployment = application.deployments.get(DEPLOYMENT)
    said = [application.message, "" if deployment is None else deployment.message]
    return {
        "object": "ray_replicas",
        "name": name,
        "status": str(application.status.value),
        "message": " ".join(one for one in said if one),
        "replicas": {}
        if deployment is None
        else {str(state): n for state, n in deployment.replica_states.items() if n},
    }


def remove(name: str) -> None:
    """Take the replicas of an application away, GRACE_SECONDS after which none answers any more; raises NotFound."""
    from ray import serve

    state_of(name)
    serve.delete(name)


def _quiet() -> dict[str, Any]:
    return {"enable_access_log": False, "log_level": "WARNING"}


def _served() -> Any:
    """The class of the replicas, with what Ray Serve adds to one."""
    from ray import serve

    from service.ray_serving.plan import ReplicaPlan
    from service.ray_serving.replica import Replica

    class ServedReplica:
        """A replica that tells Ray Serve which adapters it has had."""

        _replica: Replica | None = None

        async def __init__(self, plan: str) -> None:  # type: ignore[misc]  # Ray awaits it, on the replica's event loop
            configure_logging("info")
            self._replica = Replica(ReplicaPlan.model_validate_json(plan))

        async def generate(self, asked: ReplicaRequest) -> AsyncIterator[ReplicaMessage]:
            """See `Replica`."""
            if asked.digest is not None:
                await self.adapter(asked.digest)
            assert self._replica is not None
            async for piece in self._replica.generate(asked):
                yield piece

        @serve.multiplexed(max_num_models_per_replica=REPORTED_ADAPTERS)  # type: ignore[untyped-decorator]
        async def adapter(self, digest: str) -> str:
            """Note that a digest is used; its weights are the engine's to load and to drop."""
            return digest

        def __del__(self) -> None:
            if self._replica is not None:
                self._replica.stop()

    return ServedReplica
