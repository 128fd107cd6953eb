"""Deploys inference replicas on a Ray cluster, reports their state, and removes them. Called by `soup ray`.

Serve's proxies are not started: they accept requests from anybody, and replicas check no keys. A server calls replicas
through a handle, for which Ray requires the cluster's token.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from registry.errors import InvalidParameter, NotFound, Unavailable
from service.observability.logs import configure_logging
from service.settings import calm_variables

if TYPE_CHECKING:  # these import torch, which `state_of` and `remove` do not need
    from service.engine_process.plan import EnginePlan
    from service.engine_process.wire import ReplicaMessage, SentRequest

DEPLOYMENT = "replica"
REPORTED_ADAPTERS = 256
"""Digests that a replica reports as used last: Ray prefers, among free replicas, one that has used a request's."""
GRACE_SECONDS = 30.0
"""How long a replica that is removed or replaced may go on answering; then its streams end with an error."""
UPSCALE_SECONDS = 10.0
DOWNSCALE_SECONDS = 300.0
"""How long the load has to stay higher or lower until Ray adds or removes replicas."""


@dataclass(frozen=True)
class Scale:
    """Number of replicas, and when Ray adds or removes some.

    It keeps the requests in progress near `target_requests` a replica, with `min_replicas` to `max_replicas`. A replica
    gets at most `max_requests` at once, and `max_queued` wait at each server.
    """

    min_replicas: int
    max_replicas: int
    target_requests: float
    max_requests: int
    max_queued: int


def deploy(name: str, plan: EnginePlan, scale: Scale, *, cpus: float, gpus: float, seconds: float) -> None:
    """Deploy or update replicas on the cluster that this process is connected to.

    Each replica takes `cpus` processors and `gpus` GPUs of its node. Returns once the minimum number of them is
    running; raises Unavailable, with Ray's message, if that fails or takes longer than `seconds`, and InvalidParameter
    without base models.
    """
    if not plan.bases:
        raise InvalidParameter(
            "Replicas need base models: name the allowlist with --bases or SOUP_BASES.", param="bases"
        )
    from ray import serve

    serve.start(proxy_location="Disabled", logging_config={"enable_access_log": False, "log_level": "WARNING"})
    deployment: Any = serve.deployment(
        _served_replica_class(),
        name=DEPLOYMENT,
        max_ongoing_requests=scale.max_requests,
        max_queued_requests=scale.max_queued,
        ray_actor_options={
            "num_cpus": cpus,
            "num_gpus": gpus,
            "runtime_env": {"env_vars": calm_variables()},
        },
        autoscaling_config={
            "min_replicas": scale.min_replicas,
            "max_replicas": scale.max_replicas,
            "initial_replicas": scale.min_replicas,
            "target_ongoing_requests": scale.target_requests,
            "upscale_delay_s": UPSCALE_SECONDS,
            "downscale_delay_s": DOWNSCALE_SECONDS,
        },
        graceful_shutdown_timeout_s=GRACE_SECONDS,
        health_check_period_s=5.0,
        health_check_timeout_s=30.0,
    )
    target = serve.RunTarget(deployment.bind(plan.model_dump_json()), name=name, route_prefix=None)
    serve.run_many([target], wait_for_applications_running=False)
    _wait_until_running(name, seconds)


def _wait_until_running(name: str, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while True:
        state = state_of(name)
        if state["status"] == "RUNNING":
            return
        if state["status"] == "DEPLOY_FAILED" or time.monotonic() > deadline:
            raise Unavailable(f"The replicas '{name}' do not start ({state['status']}): {state['message'][:2000]}")
        time.sleep(0.2)


def state_of(name: str) -> dict[str, Any]:
    """The state of an application: status, message, and number of replicas by state; raises NotFound."""
    from ray import serve

    application = serve.status().applications.get(name)
    if application is None:
        raise NotFound(f"There are no replicas '{name}' on this cluster: `soup ray deploy` puts some there.")
    deployment = application.deployments.get(DEPLOYMENT)
    messages = [application.message, "" if deployment is None else deployment.message]
    return {
        "object": "ray_replicas",
        "name": name,
        "status": str(application.status.value),
        "message": " ".join(filter(None, messages)),
        "replicas": {}
        if deployment is None
        else {str(state): n for state, n in deployment.replica_states.items() if n},
    }


def remove(name: str) -> None:
    """Remove the replicas of an application, which finish answers for GRACE_SECONDS; raises NotFound."""
    from ray import serve

    state_of(name)
    serve.delete(name)


def _served_replica_class() -> Any:
    """`Replica` as a deployment class, which reports the adapters that it has used to Ray Serve."""
    from ray import serve

    from service.engine_process.plan import EnginePlan
    from service.ray_serving.replica import Replica

    class ServedReplica:
        """See `Replica`."""

        _replica: Replica | None = None

        async def __init__(self, plan: str) -> None:  # type: ignore[misc]  # Ray awaits it, on the replica's event loop
            checked = EnginePlan.model_validate_json(plan)
            configure_logging(checked.log_level)
            self._replica = Replica(checked)

        async def generate(self, request: SentRequest) -> AsyncIterator[ReplicaMessage]:
            """See `Replica`."""
            if request.request.adapter is not None:
                await self.note_adapter(request.request.adapter.digest)
            assert self._replica is not None
            async for message in self._replica.generate(request):
                yield message

        @serve.multiplexed(max_num_models_per_replica=REPORTED_ADAPTERS)  # type: ignore[untyped-decorator]
        async def note_adapter(self, digest: str) -> str:
            """Report a digest as used; the engine loads and evicts its weights."""
            return digest

        def __del__(self) -> None:
            if self._replica is not None:
                self._replica.stop()

    return ServedReplica
