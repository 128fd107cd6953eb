"""`/v1/adapters/{ns}/{name}/probe`: the stored probe of a version, and the diagnosis of another server's answers to it.

What is missing of the probe is taken when it is asked for, and stored. Nothing of the diagnosis is stored.
"""

from __future__ import annotations

from fastapi import APIRouter

from registry.probes.diagnosis import diagnose
from registry.spec import ServerReadings
from service.http.app_services import AppServices
from service.http.models.named_models import adapter_named
from service.http.requests.bodies import CheckedRoute
from service.http.schemas.probes import Diagnosed, Probe
from service.http.security.auth import Reader
from service.probes import take_probe

router = APIRouter(prefix="/v1/adapters", tags=["adapters"], route_class=CheckedRoute)

MOST_OTHERS = 1000
"""Adapters of the same base model that a server's answers are compared with, the newest."""


@router.get("/{ns}/{name}/probe")
def get_probe(ns: str, name: str, services: AppServices, principal: Reader) -> Probe:
    """The probe of a version: what a server of it has to answer to some short texts. It is taken once."""
    row = adapter_named(services, principal, ns, name)
    base, probe = take_probe(services, row, scaled=True)
    return Probe(
        adapter=row.ref,
        digest=row.digest,
        base_model=row.base_model,
        base_fingerprint=row.base_fingerprint,
        texts=list(base.texts),
        base=list(base.readings),
        readings=list(probe.readings),
        scales=list(probe.scales),
        scaled=[list(readings) for readings in probe.scaled],
    )


@router.post("/{ns}/{name}/probe")
def diagnose_server(ns: str, name: str, body: ServerReadings, services: AppServices, principal: Reader) -> Diagnosed:
    """Diagnose what another server answered to the probe of a version: whether it is the adapter, and if not, what.

    It is compared with the probes of all adapters of that base model that the key may read.
    """
    row = adapter_named(services, principal, ns, name)
    base, probe = take_probe(services, row, scaled=True)
    diagnosis = diagnose(body, base, probe, {})
    if diagnosis.verdict not in ("same", "base_only"):
        with services.registry.database.read() as catalogue:
            probes_by_ref = catalogue.probes.of_base(
                principal.namespaces, row.base_fingerprint, without=row.digest, limit=MOST_OTHERS
            )
        diagnosis = diagnose(body, base, probe, probes_by_ref)
    return Diagnosed(adapter=row.ref, **diagnosis.model_dump())
