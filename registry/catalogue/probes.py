"""Probes of base models, by fingerprint, and of adapters, by digest: read by `soup doctor`, stored at a push."""

from __future__ import annotations

from pydantic import BaseModel
from sqlalchemy import func, select

from registry.catalogue.repository import TableGateway, seen_by
from registry.catalogue.rows import Namespaces
from registry.catalogue.tables import LIVE, adapters, probes
from registry.spec import AdapterProbe, BaseProbe, Readings


class Probes(TableGateway):
    """Probe rows; one of an adapter counts for every version with its digest."""

    def base(self, fingerprint: str) -> BaseProbe | None:
        """The probe of a base model, None if no adapter of it has one."""
        probe = self._connection.scalar(select(probes.c.probe).where(probes.c.digest == fingerprint))
        return None if probe is None else BaseProbe.model_validate(probe)

    def adapter(self, digest: str) -> AdapterProbe | None:
        """The probe of an adapter, None if it was not taken."""
        probe = self._connection.scalar(select(probes.c.probe).where(probes.c.digest == digest))
        return None if probe is None else AdapterProbe.model_validate(probe)

    def put(self, digest: str, probe: BaseModel) -> None:
        """Store or replace a probe."""
        self._delete(probes, probes.c.digest == digest)
        self._insert(probes, digest=digest, probe=probe.model_dump(mode="json"))

    def readings_of_base(
        self, visible: Namespaces, fingerprint: str, *, without: str, limit: int
    ) -> dict[str, Readings]:
        """Readings of the newest visible live adapters of a base model by ref, `without` the digest."""
        ids = (
            select(func.max(adapters.c.id))
            .where(LIVE, adapters.c.base_fingerprint == fingerprint, adapters.c.digest != without)
            .where(seen_by(visible, adapters.c.namespace))
            .group_by(adapters.c.digest)
        )
        query = (
            select(adapters.c.namespace, adapters.c.name, adapters.c.version, probes.c.probe["readings"])
            .join(probes, probes.c.digest == adapters.c.digest)
            .where(adapters.c.id.in_(ids))
            .order_by(adapters.c.id.desc())
            .limit(limit)
        )
        return {
            f"{namespace}/{name}@{version}": tuple(readings)
            for namespace, name, version, readings in self._connection.execute(query)
        }
