"""The test suite that every kind of site must pass, against the real system. Production code does not use it.

Derive a test class that defines how to create a site, and a job that runs for a given time; pytest finds the rest::

    class TestNomad(SiteConformance):
        @pytest.fixture
        def make(self, tmp_path):
            return lambda: NomadSite("nomad", NomadConfig(kind="nomad", ...), tmp_path / "spool")

        def workload(self, seconds):
            ...

Each test drives sites like the controller: it observes, gives jobs to locations, and acknowledges the events it has
read.
"""

from __future__ import annotations

import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from lading.hooks.batch.request import new_name
from lading.hooks.site import ElasticSite, Holding, LocationState, Observation, Order, Site, check_location
from lading.hooks.spool.events import sift
from lading.hooks.spool.hold import Hold
from lading.hooks.spool.spool import Envelope
from lading.scheduling.matching.market import need
from lading.scheduling.model.reasons import because
from lading.scheduling.model.resources import Resources
from lading.scheduling.provisioning import decide

Make = Callable[[], Site[Any]]


class DrivenSite:
    """A site driven the way a controller does it, with the events that it has reported."""

    def __init__(self, site: Site[Any], patience: float) -> None:
        self.site = site
        self.patience = patience
        self.events: list[dict[str, Any]] = []
        self.seen: Observation | None = None

    def observe(self, *, acknowledge: bool = True) -> Observation | None:
        """Observe once; None if the site could not be reached, which proves nothing."""
        try:
            found = self.site.observe()
        except OSError:
            return None
        valid, faults = sift(found.events)
        assert faults == [], "events of a site have the form that lading.hooks.spool.events defines"
        assert len(valid) == len(found.events)
        self.events += valid
        if acknowledge:
            found.acknowledge()
        self.seen = found
        return found

    def until(self, reached: Callable[[], bool], what: str, *, acknowledge: bool = True) -> None:
        """Observe until the condition holds."""
        end = time.monotonic() + self.patience
        while True:
            self.observe(acknowledge=acknowledge)
            if reached():
                return
            assert time.monotonic() < end, f"not within {self.patience:g} s: {what}; {self.events}; {self.seen}"
            time.sleep(0.1)

    def events_of(self, kind: str, token: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["event"] == kind and event["token"] == token]

    def wait_for(self, kind: str, *tokens: str) -> list[dict[str, Any]]:
        """Return the first event of this kind for each job."""
        self.until(lambda: all(self.events_of(kind, token) for token in tokens), f"{kind} of {tokens}")
        return [self.events_of(kind, token)[0] for token in tokens]

    def place(self, envelope: Envelope) -> str:
        """Return a location that takes jobs; if the site launches locations and has none, launch one for this job."""
        self.until(lambda: self.seen is not None, "an answer")
        if isinstance(self.site, ElasticSite) and self.site.launches and not self._has_any():
            self._launch(self.site, envelope)
        self.until(lambda: bool(self._up()), "a location that is up")
        return self._up()[0]

    def knows(self, token: str) -> bool:
        seen = self.seen.locations if self.seen is not None else ()
        return any(token in (each.known or ()) for each in seen)

    def _has_any(self) -> bool:
        return any(each.state is not LocationState.DRAINING for each in self.seen.locations) if self.seen else False

    def _up(self) -> list[str]:
        return [each.name for each in self.seen.locations if each.state is LocationState.UP] if self.seen else []

    def _launch(self, site: ElasticSite[Any], envelope: Envelope) -> None:
        self.until(lambda: self.seen is not None and self.seen.market is not None, "a market")
        assert self.seen is not None
        assert self.seen.market is not None
        waiting, now = envelope.waiting(), time.time()
        # The job appears to have waited a minute, so the site does not wait for more jobs.
        provision = decide(
            [need(waiting, self.seen.market)], [], self.seen.market, {envelope.token: now - 60.0}, now=now
        )
        assert provision.launches, provision
        # The same order twice launches once.
        orders = [Order(new_name(), launch) for launch in provision.launches]
        site.launch(orders)
        site.launch(orders)


class SiteConformance(ABC):
    """The behaviour that every kind of site must have."""

    patience = 60.0
    """Seconds that anything can take."""
    asked = Resources(cpus=1, memory=300)
    """What each job requests."""

    @abstractmethod
    def workload(self, seconds: float) -> dict[str, Any]:
        """Return a workload that succeeds after ``seconds``."""

    def envelope(self, seconds: float = 0.0, **changes: Any) -> Envelope:
        """Return a job that runs for ``seconds``."""
        now = time.time()
        values: dict[str, Any] = {"memory_limit": None, "time_limit": None, "priority": 0, "queued_at": now}
        values |= {"workload": self.workload(seconds), "resources": self.asked, "expires_at": now + 3600, **changes}
        return Envelope(str(uuid.uuid4()), **values)

    def drive(self, make: Make) -> DrivenSite:
        return DrivenSite(make(), self.patience)

    def test_it_says_what_there_is(self, make: Make) -> None:
        drive = self.drive(make)
        for each in drive.site.potential():
            check_location(each)
        envelope = self.envelope()
        name = drive.place(envelope)
        assert drive.seen is not None
        [there] = [each.location for each in drive.seen.locations if each.name == name]
        assert not envelope.resources.lacking(there.capacity)
        assert drive.site.jwt_seconds > 0

    def test_a_job_runs_once_though_it_is_given_twice(self, make: Make) -> None:
        drive = self.drive(make)
        envelope = self.envelope(2)
        name = drive.place(envelope)
        drive.site.put({name: [envelope]})

        def is_known() -> bool:
            return drive.knows(envelope.token) or bool(drive.events_of("finished", envelope.token))

        drive.until(is_known, "it is reported at once")
        drive.site.put({name: [envelope]})
        drive.wait_for("started", envelope.token)
        drive.site.put({name: [envelope]})
        [end] = drive.wait_for("finished", envelope.token)
        assert (end["cause"], end["exit_code"]) in ((None, 0), (None, None))
        drive.until(lambda: not drive.knows(envelope.token), "a finished job is no longer reported")
        assert len(drive.events_of("started", envelope.token)) == len(drive.events_of("finished", envelope.token)) == 1

    def test_it_is_known_from_first_to_last(self, make: Make) -> None:
        drive = self.drive(make)
        envelope = self.envelope(3)
        drive.site.put({drive.place(envelope): [envelope]})
        while not drive.events_of("finished", envelope.token):
            drive.observe()
            asked = drive.seen is not None and all(each.known is not None for each in drive.seen.locations)
            assert not asked or drive.knows(envelope.token) or drive.events_of("finished", envelope.token), (
                "a job that is unknown for long counts as lost, so it must be known until its end is reported"
            )
            time.sleep(0.05)

    def test_what_is_not_acknowledged_is_told_again(self, make: Make) -> None:
        drive = self.drive(make)
        envelope = self.envelope()
        drive.site.put({drive.place(envelope): [envelope]})
        drive.until(lambda: bool(drive.events_of("finished", envelope.token)), "its end", acknowledge=False)
        drive.events.clear()
        drive.wait_for("finished", envelope.token)

    def test_a_job_is_cancelled(self, make: Make) -> None:
        drive = self.drive(make)
        envelope = self.envelope(120)
        name = drive.place(envelope)
        drive.site.put({name: [envelope]})
        drive.wait_for("started", envelope.token)
        drive.site.cancel({name: {envelope.token: because("unwanted"), str(uuid.uuid4()): because("unknown_job")}})
        [end] = drive.wait_for("finished", envelope.token)
        assert end["cause"] == "cancelled"

    def test_a_job_over_its_time_is_ended(self, make: Make) -> None:
        drive = self.drive(make)
        envelope = self.envelope(120, time_limit=3)
        drive.site.put({drive.place(envelope): [envelope]})
        [end] = drive.wait_for("finished", envelope.token)
        assert end["cause"] == "time_limit"

    def test_room_is_held_for_a_job_that_is_to_come(self, make: Make) -> None:
        drive = self.drive(make)
        site = drive.site
        if not site.holds:
            return  # it does not support gangs
        assert isinstance(site, Holding)
        envelope, other = self.envelope(), self.envelope()
        name = drive.place(envelope)
        assert drive.seen is not None
        [there] = [each.location for each in drive.seen.locations if each.name == name]
        everything = replace(there.capacity, disk=0)  # without disk, which other programs use, too
        held, more, dropped = (
            Hold(f"hold-{uuid.uuid4()}", job, amounts)
            for job, amounts in ((envelope.token, everything), (other.token, self.asked), ("none", everything))
        )
        site.hold({name: [held]})
        drive.wait_for("held", held.token)
        site.hold({name: [held, more]})
        drive.wait_for("refused", more.token)
        site.put({name: [envelope]})
        drive.wait_for("finished", envelope.token)
        site.hold({name: [dropped]})
        drive.wait_for("held", dropped.token)
        site.put({name: [other]})
        site.drop({name: [dropped.token]})
        drive.wait_for("finished", other.token)
        assert not drive.events_of("hold_lost", held.token)

    def test_another_controller_goes_on(self, make: Make) -> None:
        first = self.drive(make)
        envelope = self.envelope(4)
        first.site.put({first.place(envelope): [envelope]})
        first.wait_for("started", envelope.token)
        first.site.close("hand_over", self.patience)
        second = self.drive(make)
        second.until(
            lambda: second.knows(envelope.token) or bool(second.events_of("finished", envelope.token)), "it is known"
        )
        [end] = second.wait_for("finished", envelope.token)
        assert end["cause"] is None


def close(sites: Iterable[Site[Any]], timeout: float = 60.0) -> None:
    """Close sites and cancel all their jobs."""
    for site in sites:
        site.close("cancel", timeout)
