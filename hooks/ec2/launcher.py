"""The launcher: it asks EC2 for what is ordered. It decides nothing of that."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

from lading.hooks.ec2 import boot, life
from lading.hooks.ec2.boot import Batch
from lading.hooks.ec2.client import EC2, EC2Error, Instance, Trouble
from lading.hooks.ec2.life import End, Phase
from lading.hooks.ec2.member import Member
from lading.hooks.ec2.pace import INSTANCES, REQUESTS, Bucket, Shortages
from lading.hooks.ec2.tokens import Identity
from lading.scheduling.catalogue import bundled

log = logging.getLogger(__name__)

# A request without an answer is repeated after so many seconds, if nothing was found of it.
SECONDS_UNTIL_ASKED_AGAIN = 3.0


class Launcher:
    """:param identity: whose machines they become
    :param scope: the value of the tag that names the site
    :param members: of the fleet, by name
    :param leave: called with what is not launched, and why
    """

    def __init__(
        self,
        ec2: EC2,
        identity: Identity,
        scope: str,
        members: dict[str, Member],
        leave: Callable[[Member, End], None],
    ) -> None:
        self.ec2 = ec2
        self.identity = identity
        self.scope = scope
        self.members = members
        self.leave = leave
        self.shortages = Shortages()
        self.batches: list[Batch] = []
        """What is to be asked for."""
        self.unanswered: dict[str, tuple[Batch, float]] = {}
        """What was asked for without an answer, by its token, and when, on the monotonic clock."""
        self._requests, self._instances = Bucket(REQUESTS), Bucket(INSTANCES)
        self._subnets: dict[str, str] | None = None

    def order(self, batches: Sequence[Batch]) -> None:
        """Ask for these from the next round on."""
        self.batches += batches

    @property
    def is_busy(self) -> bool:
        """Whether anything is to be asked for, or answered."""
        return bool(self.batches or self.unanswered)

    def launch(self) -> None:
        """Ask for what is ordered, as much as may be asked for now.

        :raises EC2Error: EC2 does not answer
        """
        self._repeat()
        batches, self.batches = self.batches, []
        while batches:
            batch = batches.pop(0)
            if not (waiting := self._waiting(batch)):
                continue
            now = time.time()
            why = self.shortages.held(now) or self.shortages.missing(batch.offering, now)
            if why is not None:
                self._end(waiting, why)
            elif self.shortages.paused(now) is None and self._may_ask(batch):
                self._ask(batch)
            else:
                self.batches += [batch, *batches]
                return

    def _waiting(self, batch: Batch) -> list[Member]:
        """Those of a batch that are still wanted."""
        found = [self.members.get(each.name) for each in batch.orders]
        return [each for each in found if each is not None and each.phase in (Phase.ORDERED, Phase.UNKNOWN)]

    def _may_ask(self, batch: Batch) -> bool:
        now = time.monotonic()
        return self._instances.take(len(batch.orders), now) and self._requests.take(1, now)

    def _repeat(self) -> None:
        """Find out what became of requests that were not answered: a time-out is no answer.

        What the fleet has found by its tags meanwhile waits no more. The rest is asked for by the same bytes with the
        same token, to which EC2 answers with what it has launched for it, and launches nothing twice:
        https://docs.aws.amazon.com/ec2/latest/devguide/ec2-api-idempotency.html
        """
        for token, (batch, at) in list(self.unanswered.items()):
            if not self._waiting(batch):
                del self.unanswered[token]
            elif time.monotonic() - at > SECONDS_UNTIL_ASKED_AGAIN and self._may_ask(batch):
                self._ask(batch)

    def _ask(self, batch: Batch) -> None:
        try:
            parameters = self._parameters(batch)
            life.reach(0)
            found = self.ec2.run(parameters)
        except EC2Error as error:
            self._refused(batch, error)
            return
        life.reach(1)
        self.unanswered.pop(batch.token, None)
        self.shortages.launched()
        self._note(batch, found)
        life.reach(2)

    def _parameters(self, batch: Batch) -> dict[str, Any]:
        kind, zone, _ = batch.offering
        image = self.ec2.image(self.arch(kind))
        if self._subnets is None:
            self._subnets = self.ec2.zones()
        subnet = next(iter(self._subnets.values())) if zone is None else self._subnets.get(zone)
        if subnet is None:
            words = f"no subnet of the table is in {zone}; those are in {', '.join(sorted(self._subnets))}"
            raise EC2Error(Trouble.PERMANENT, "", words)
        return boot.request(self.ec2.config, self.identity, self.scope, batch, image, subnet)

    def arch(self, kind: str) -> str:
        """The architecture of a type.

        :raises EC2Error: EC2 does not answer, or there is none
        """
        known = bundled().types.get(kind)
        return known.arch if known is not None else self.ec2.arch(kind)

    def _note(self, batch: Batch, found: Sequence[Instance]) -> None:
        """Know what was launched; what was not is left."""
        by_index = {each.index: each for each in found}
        for index, order in enumerate(batch.orders):
            member, instance = self.members.get(order.name), by_index.get(index)
            if member is None or member.instance is not None:
                continue
            if instance is not None:
                member.instance = instance
                member.enter(Phase.PENDING)
            else:
                words = f"EC2 had capacity for {len(found)} of {len(batch.orders)} that were asked for together"
                error = EC2Error(Trouble.CAPACITY, "", words)
                self.shortages.refused(batch.offering, error, time.time())
                self.leave(member, End("no_capacity", words))

    def _refused(self, batch: Batch, error: EC2Error) -> None:
        if error.trouble is Trouble.SILENCE:
            self.unanswered[batch.token] = batch, time.monotonic()
            for each in self._waiting(batch):
                each.enter(Phase.UNKNOWN)
                each.note = str(error)
            raise error
        self.shortages.refused(batch.offering, error, time.time())
        if error.trouble is Trouble.THROTTLE:
            if batch.token not in self.unanswered:
                self.batches.insert(0, batch)
            for each in self._waiting(batch):
                each.note = str(error)
            return
        self.unanswered.pop(batch.token, None)
        log.warning("EC2 does not launch %s in %s (%s): %s", *batch.offering, error)
        self._end(self._waiting(batch), str(error))

    def _end(self, members: Sequence[Member], words: str) -> None:
        for each in members:
            self.leave(each, End("no_capacity", words))
