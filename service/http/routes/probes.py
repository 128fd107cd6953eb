"""`/v1/adapters/{ns}/{name}/probe`: the probe of a version, and the diagnosis of another server's answers to it.

Missing readings are taken when they are needed, and stored. Nothing of a diagnosis is stored.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from fastapi import APIRouter

from registry.catalogue.rows import AdapterRow
from registry.probes.diagnosis import diagnose
from registry.spec import Readings, ServerReadings
from service.access.keys import Principal
from service.http.app_services import AppServices
from service.http.models.inference_limits import limit_embeddings
from service.http.models.named_models import adapter_named, unchanged_base
from service.http.requests.bodies import CheckedRoute
from service.http.schemas.probes import Diagnosed, Probe
from service.http.security.auth import ModelUser
from service.jobs.probes import take_probe, take_scaled_probe
from service.services import Services

router = APIRouter(prefix="/v1/adapters", tags=["adapters"], route_class=CheckedRoute)

MOST_OTHERS = 1000
"""Adapters of the same base model that a server's answers are compared with, the newest."""
MOST_VERSIONS = 8
"""Versions of a name whose probes a diagnosis takes where they are missing, the newest."""


@router.get("/{ns}/{name}/probe")
def get_probe(ns: str, name: str, services: AppServices, principal: ModelUser) -> Probe:
    """The probe of a version: the answers to some short texts that a server of this version must give. It is taken
    once.
    """
    row = _served_adapter(services, principal, ns, name)
    with limit_embeddings(services):
        base, probe = take_probe(services, row, owner=principal.key_id)
    return Probe(
        adapter=row.ref,
        digest=row.digest,
        base_model=row.base_model,
        base_fingerprint=row.base_fingerprint,
        texts=list(base.texts),
        base=list(base.readings),
        readings=list(probe.readings),
    )


@router.post("/{ns}/{name}/probe")
def diagnose_server(ns: str, name: str, body: ServerReadings, services: AppServices, principal: ModelUser) -> Diagnosed:
    """Diagnose another server's answers to the probe of a version: does it serve the adapter, and if not, which model?

    The answers are compared with the newest versions of its name. They are also compared with up to a thousand adapters
    of that base model that have a probe and that the key sees.
    """
    row = _served_adapter(services, principal, ns, name)
    with limit_embeddings(services):
        base, probe = take_probe(services, row, owner=principal.key_id)
        diagnosis = diagnose(
            body,
            base,
            probe,
            other_readings=partial(_other_readings, services, principal, row),
            at_scales=partial(take_scaled_probe, services, row, owner=principal.key_id),
        )
    return Diagnosed(adapter=row.ref, **diagnosis.model_dump())


def _served_adapter(services: Services, principal: Principal, ns: str, name: str) -> AdapterRow:
    """Return the adapter that a path names; raises as `adapter_named` and `unchanged_base` do."""
    row = adapter_named(services, principal, ns, name)
    unchanged_base(services, row)
    return row


def _other_readings(services: Services, principal: Principal, row: AdapterRow) -> Mapping[str, Readings]:
    """The readings of other adapters of the base model, by ref: all that have a probe, and versions of the name."""
    database = services.registry.database
    with database.read() as catalogue:
        versions = catalogue.adapters.live_versions(row.namespace, row.name, limit=MOST_VERSIONS)
    for version in versions:
        if version.base_fingerprint == row.base_fingerprint:
            take_probe(services, version, owner=principal.key_id)
    with database.read() as catalogue:
        return catalogue.probes.readings_of_base(
            principal.namespaces, row.base_fingerprint, without=row.digest, limit=MOST_OTHERS
        )
