"""A machine, and the thread that talks to it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Sequence

from lading.hooks.api_tunnel.tunnel import DirectTunnel
from lading.hooks.machines.machine import Machine
from lading.hooks.polling.rounds import Rounds
from lading.hooks.site import LocationState, ObservedLocation, StagingArea, join
from lading.hooks.spool.hold import Hold
from lading.scheduling.model.gpus import gpu_feature
from lading.scheduling.model.location import Location
from lading.scheduling.model.machine_traits import DEFAULT_OS
from lading.scheduling.model.reasons import Reason, because
from lading.scheduling.model.resources import NOT_KNOWN, Resources

log = logging.getLogger(__name__)

NO_ANSWER = "it has not answered yet, so its resources are unknown"


class Connection:
    """A machine, and the thread that talks to it.

    :param site: the name of the machine's site
    :param notify: called when it begins or ceases to take jobs; its events wait for the next observation, because a
        machine that runs short jobs has some in every round
    """

    seconds_until_late = 20.0
    """A machine whose answer takes longer gets no jobs until it has answered."""

    def __init__(self, site: str, machine: Machine, notify: Callable[[], None]) -> None:
        self.machine = machine
        self.notify = notify
        tunnel = None
        if machine.config.needs_tunnel(machine.api):
            tunnel = DirectTunnel(machine.transport, machine.api, file=f"{machine.root}/api_address")
        self.rounds = Rounds(
            f"{site}-{self.name}", machine, tunnel, machine.spool, machine.tracker.leisure, self._note_round
        )
        self._took_jobs = False

    @property
    def name(self) -> str:
        return self.machine.host.ssh_conn_id

    @property
    def trouble(self) -> str | None:
        """Why it is unreachable; None: it is reachable."""
        if self.rounds.trouble is None and self.machine.is_loaded:
            is_late = self.rounds.seconds_under_way > self.seconds_until_late
            return f"it has not answered for {self.seconds_until_late:.0f} s" if is_late else None
        return self.rounds.trouble or NO_ANSWER

    @property
    def leaving(self) -> Reason | None:
        """The notice that the machine is being reclaimed; None: there is none."""
        if self.machine.ends_at is None:
            return None
        return because("machine_interrupted", at=self.machine.ends_at)

    def silence(self, now: float) -> float:
        """Return the seconds since its last answer; 0 while there is no trouble. A refusal is an answer."""
        return 0.0 if self.trouble is None else now - self.machine.reached_at

    def seen(self, site: str) -> ObservedLocation:
        machine, trouble = self.machine, self.trouble
        leaving = None if self.leaving is None else str(self.leaving)
        note = join(trouble or machine.note, leaving, machine.rejected.note)
        state = LocationState.UP if trouble is None and machine.note is None else LocationState.UNREACHABLE
        if trouble is None and (machine.drains or machine.is_closing or machine.ends_at is not None):
            state = LocationState.DRAINING
        known = machine.tracker.known() if trouble is None and not machine.is_behind else None
        node = machine.facts.host if machine.facts is not None else None
        return ObservedLocation(self.location(site), state, known, note, node=node)

    def location(self, site: str) -> Location:
        """Return the machine as a location; until it has answered, with the capacity in its table."""
        host, facts = self.machine.host, self.machine.facts
        capacity = facts.capacity if facts is not None else None
        if capacity is None:
            said = {name: amount for name, amount in host.share.items() if amount is not None}
            capacity = Resources(**{**{name: getattr(NOT_KNOWN, name) for name in host.share}, **said})
        return Location(
            host.ssh_conn_id,
            capacity,
            instance_type=host.instance_type,
            usd_per_hour=host.usd_per_hour,
            capacity_type=host.capacity_type,
            arch=facts.arch if facts is not None else None,
            os=facts.os if facts is not None else DEFAULT_OS,
            features=frozenset(
                (*host.features, *host.properties, *([gpu_feature(host.gpu_type)] if host.gpu_type else []))
            ),
            site=site,
            ends_at=self.machine.ends_at,
        )

    def staging_area(self) -> StagingArea:
        machine = self.machine
        return StagingArea(machine.host.ssh_conn_id, machine.transport, machine.root)

    def hold(self, holds: Sequence[Hold]) -> None:
        self.machine.holds.ask(holds)
        self.rounds.wake()

    def drop(self, tokens: Collection[str]) -> None:
        self.machine.holds.drop(tokens)
        self.rounds.wake()

    def let_go(self, how: str, deadline: float, *, is_trial: bool = False) -> None:
        """Disconnect from the machine as :meth:`lading.hooks.site.Site.close` says.

        :param deadline: on the monotonic clock
        :param is_trial: whether all files of Lading are removed from it
        """
        machine = self.machine
        try:
            self.rounds.stop(max(0.0, deadline - time.monotonic()))
            if self.rounds.is_alive:
                raise OSError("it does not answer; its jobs keep running")
            if how != "hand_over":
                try:
                    self._end_agent(how, deadline)
                except OSError:
                    if machine.is_loaded or not is_trial:
                        raise  # else no agent was started, and the uploaded files can be removed
            if is_trial:
                parent, _, name = machine.root.rpartition("/")
                machine.transport.remove(parent, [name])
                machine.transport.run([["rmdir", parent]])  # succeeds for the last machine that uses it
        except OSError as error:
            log.warning("Machine %s could not be disconnected properly: %s", machine.place, error)
        finally:
            if self.rounds.tunnel is not None:
                self.rounds.tunnel.close()
            machine.leave()
            machine.transport.close()

    def _note_round(self) -> None:
        takes_jobs = self.trouble is None and self.machine.note is None
        if takes_jobs != self._took_jobs:
            self._took_jobs = takes_jobs
            self.notify()

    def _end_agent(self, how: str, deadline: float) -> None:
        """Shut the agent down: at once, cancelling its jobs, or once its jobs have finished.

        A machine that has not answered yet is asked first which jobs it has from an earlier controller.
        """
        machine, request = self.machine, "drain" if how == "leave" else "cancel"
        was_loaded = machine.is_loaded
        machine.shut_down(request)
        machine.round()
        if not was_loaded:
            machine.shut_down(request)
            machine.round()
        while how == "cancel" and (machine.lives or machine.tracker.is_busy) and time.monotonic() < deadline:
            time.sleep(0.2)
            machine.round()
