"""Choosing the replica of a request, and the next one where that is lost."""

from __future__ import annotations

import logging
from itertools import count

from registry.catalogue import Database
from registry.errors import SoupError, Unavailable
from service.http.body_limits import HeldBytes
from service.http.pages.cookies import SESSION, own_cookies
from service.oidc.callers import tokens_of
from service.router.call import Call
from service.router.directory import Asker, Destination, Directory
from service.router.fleet import Fleet, Member
from service.router.metrics import RouterMetrics
from service.router.passing import Lost, Passage
from service.router.ranking import by_key, by_load, ranked
from service.settings import Settings

log = logging.getLogger("soup.router")
NONE_THERE = "No server that takes requests is there now; try again."
CUT = "The server that was answering ended before the answer was whole; send the request again."
UNSURE = (
    "The server that had this request ended before it answered, and it is not known how far it came: look before you "
    "send it again."
)
RETRY_SECONDS = 2


class Choice:
    """Sends requests to the replicas of a fleet."""

    def __init__(self, database: Database, settings: Settings, fleet: Fleet, metrics: RouterMetrics) -> None:
        self._fleet = fleet
        self._metrics = metrics
        # of its connections one is left for the looks at the fleet
        self._directory = Directory(
            database, threads=max(1, settings.database_pool - 1), issuer=tokens_of(settings)
        )  # fmt: skip
        self._held = HeldBytes(settings.max_json_bytes_held)
        self._passage = Passage()
        self._turns = count()

    async def close(self) -> None:
        """Close every connection."""
        self._directory.close()
        await self._passage.close()

    async def asker(self, call: Call) -> Asker | None:
        """Whose key or token a request has; None where none is known here, now."""
        header = call.headers.get("authorization")
        if header is None:
            return None
        try:
            return await self._directory.asker(header)
        except SoupError:  # the database does not answer: the replica says so
            return None

    async def place(self, call: Call, asker: Asker | None) -> str:
        """As whose an answer counts while it is under way.

        That of nobody known here is counted with all others from its address, which is a proxy's where one is before
        the router: without this one of them could take every place of those who have signed in.
        """
        if asker is None and "authorization" not in call.headers:
            asker = await self._browser(call)
        return f"address {(call.scope.get('client') or ('',))[0]}" if asker is None else asker.id

    async def _browser(self, call: Call) -> Asker | None:
        token = next((value for name, value in own_cookies(call.scope) if name.endswith(SESSION)), None)
        if token is None:
            return None
        try:
            return await self._directory.session(token)
        except SoupError:
            return None

    async def route(self, call: Call, asker: Asker | None) -> None:
        """Have a replica answer; raises Unavailable, and what is wrong with a body that has to be held.

        A body is held, and looked into, for a key that exists: any other request is refused by the first replica.
        """
        try:
            destination = None
            if call.is_inference and asker is not None:
                await call.gather(self._held.account(), asker.id)
                destination = await self._destination(call, asker)
            await self._try_all(call, destination)
        finally:
            call.drop()

    async def _destination(self, call: Call, asker: Asker) -> Destination | None:
        model = await call.model()
        if model is None:
            return None
        try:
            return await self._directory.destination(asker, model)
        except SoupError:
            return None

    async def _try_all(self, call: Call, destination: Destination | None) -> None:
        """Try one replica after the other, until one answers."""
        for member in self._order(destination, call.uploader):
            call.replicas.append(member.row.id)

            async def leaves(member: Member = member) -> bool:
                return await self._leaves(member)

            try:
                await self._passage.take(call, member, leaves=leaves)
            except Lost as lost:
                self._lost(call, member, lost)
            else:
                return
        raise Unavailable(NONE_THERE, retry_after=RETRY_SECONDS)

    def _lost(self, call: Call, member: Member, lost: Lost) -> None:
        """Go on with the next replica; raises Unavailable where this request cannot."""
        member.failed()
        self._metrics.lost.labels("refused" if lost.refused else "broken").inc()
        fields = {"replica": member.row.id, "refused": lost.refused}
        log.warning("a replica was lost", extra={"fields": fields})
        if call.status is not None:
            raise Unavailable(CUT, retry_after=RETRY_SECONDS) from lost
        if not (call.is_repeatable or (lost.refused and not call.was_read)):
            raise Unavailable(UNSURE, retry_after=RETRY_SECONDS) from lost

    def _order(self, destination: Destination | None, uploader: str | None) -> list[Member]:
        """The replicas in the order in which they are tried; those that took no connection lately come last.

        By key for an adapter, among those that serve its base model; an uploader's parts all to one; by load for all
        else.
        """
        there = self._fleet.members
        if destination is not None:
            serving = {id_: one for id_, one in there.items() if destination.base in one.row.bases}
            there = serving or there  # where none serves it, any says so
        loads = {id_: member.load for id_, member in there.items()}
        key = None if destination is None else destination.key
        if uploader is not None:
            order = ranked(uploader, loads)
        else:
            order = by_load(next(self._turns), loads) if key is None else by_key(key, loads)
        return sorted((there[id_] for id_ in order), key=lambda member: member.is_suspect)

    async def _leaves(self, member: Member) -> bool:
        """Whether a replica has left, or is out, by what the database says now, and others are there."""
        return await self._fleet.looked() and member.row.id not in self._fleet.members and bool(self._fleet.members)
