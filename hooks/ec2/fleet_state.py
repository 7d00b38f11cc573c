"""The state that all phases of a machine's life share: the machines of a site, and what EC2 has reported."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

from lading.hooks.ec2.client import EC2
from lading.hooks.ec2.config import EC2Config
from lading.hooks.ec2.identity import Identity
from lading.hooks.ec2.limits import EC2Limits
from lading.hooks.ec2.machine import EC2Machine
from lading.hooks.ec2.offers import EC2Offers
from lading.hooks.ec2.pace import Shortages
from lading.hooks.files.logs import Trouble
from lading.hooks.machines.connection import Connection
from lading.hooks.polling.event_buffer import EventBuffer

log = logging.getLogger(__name__)


@dataclass(eq=False)
class FleetState:
    """The machines of a site.

    :param site: its name
    :param scope: the value of its machines' site tag; a trial has its own
    :param identities: our current identity, then former ones
    :ivar machines: by name; hold ``lock`` to add or remove one
    :ivar left: the connections of former machines, until everything they have reported is stored
    """

    site: str
    scope: str
    config: EC2Config
    ec2: EC2
    identities: Sequence[Identity]
    offers: EC2Offers
    event_buffer: EventBuffer
    limits: EC2Limits = EC2Limits()
    machines: dict[str, EC2Machine] = field(default_factory=dict)
    left: list[Connection] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)
    complaints: Trouble = field(default_factory=lambda: Trouble(log))

    def __post_init__(self) -> None:
        self.shortages = Shortages(self.limits)


class FleetPart:
    """A part of the fleet's work, such as one phase of its machines' life."""

    def __init__(self, state: FleetState) -> None:
        self.state = state
        self.ec2, self.machines = state.ec2, state.machines
