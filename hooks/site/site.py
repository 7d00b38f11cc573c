"""The classes that a kind of site derives from. A site is a place that can run jobs.

Their methods take jobs in bulk: one ``observe``, one ``put`` and one ``cancel`` per tick, for any number of jobs.
A site makes no decisions and has no access to Airflow's database.

The controller has one thread per site and makes all calls that contact the site there, one at a time. A slow call
delays other work at this site only.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, TypeVar

from lading.hooks.site.config import SiteConfig
from lading.hooks.site.observation import Observation
from lading.hooks.spool.hold import Hold
from lading.hooks.spool.spool import Envelope
from lading.hooks.spool.values import reason_of
from lading.scheduling.matching.admission import Admission
from lading.scheduling.matching.market import MachineMarket
from lading.scheduling.model.location import Location
from lading.scheduling.model.machine_traits import DEFAULT_ARCH
from lading.scheduling.model.reasons import Reason
from lading.scheduling.model.resources import Resources
from lading.scheduling.provisioning import Launch

if TYPE_CHECKING:
    from lading.hooks.ssh.transport import Transport

Config = TypeVar("Config", bound=SiteConfig)


class Site(ABC, Generic[Config]):
    """A place that can run jobs.

    :param name: its name in the sites file
    :param config: its validated table
    :param folder: a folder for its state, which outlives this process
    """

    kind: ClassVar[str]
    config_model: ClassVar[type[SiteConfig]]
    has_sites_file: ClassVar[bool] = False
    """Whether its jobs can read the sites file, because they run on the machine that has it."""
    trial_costs: ClassVar[bool] = False
    """Whether a trial job costs money, so that it is run only on request."""
    launches = False
    """Whether its locations are launched on demand; then it is an :class:`ElasticSite`."""
    requests_are_limits = False
    """Whether the batch system kills a job that exceeds its request, so that a request is also a limit."""
    holds = False
    """Whether its locations can reserve room for upcoming jobs; then it is a :class:`Holding` site."""
    seconds_ahead: float = 0.5
    """Seconds of work to prefetch to a location that runs short jobs, enough to last until the next jobs can arrive."""
    jwt_seconds: float = 600.0
    """Seconds for which the JWT of a job sent to this site is valid; the controller renews it while the job waits."""

    def __init__(self, name: str, config: Config, folder: Path) -> None:
        self.name = name
        self.config = config
        self.folder = folder
        self.on_news: Callable[[], None] = lambda: None
        """Called by :meth:`notify`; the observer of the site sets it."""

    def notify(self) -> None:
        """Have the site observed soon, because an observation may show something new; any thread can call this."""
        self.on_news()

    @property
    def admission(self) -> Admission:
        return self.config.admission

    @property
    def arch(self) -> str:
        """The architecture of jobs that name neither one nor an instance type, or ``any``."""
        return DEFAULT_ARCH

    @property
    def memory_overhead(self) -> int:
        """The memory that each job takes in addition to its request, on each of its nodes, for the process that runs
        it, MiB.
        """
        return 0

    def occupied(self, asked: Resources) -> Resources:
        """Return what a job with this request takes here, on each of its nodes; it is charged for that."""
        return asked

    def trial(self, folder: Path) -> Site[Config]:
        """Return the same site for a trial job, with its state in ``folder``. ``close`` removes all its traces except
        the folder.
        """
        return type(self)(self.name, self.config, folder / "spool")

    def parts(self) -> Mapping[str, Site[Config]]:
        """Return each part that a trial job has to test, by its name in messages: the site, or each of its machines."""
        return {f"site {self.name}": self}

    def trial_sizes(self) -> list[int]:
        """Return the number of trial jobs in each submission; a site with job arrays also submits several as one."""
        return [1]

    def failing(self) -> str | None:
        """Explain why a trial job is bound to fail, if that is clear before it finishes; None if it is not."""
        return None

    def diagnosis(self, event: Mapping[str, Any] | None, timeout: float) -> str:
        """Explain why a trial job failed or did not finish, and what to change.

        :param event: the event that reports how it finished; None: it exceeded the timeout
        :param timeout: the seconds that it had
        """
        if event is not None:
            return str(reason_of(event["reason"]))
        return f"the trial job did not finish within {timeout:g} s; allow more: --timeout {max(600, 2 * int(timeout))}"

    def misunderstanding(self, event: Mapping[str, Any], envelope: Envelope) -> str | None:
        """Describe which request of a successful trial job the site misinterpreted; None if there is none.

        :param event: the event that reports how it finished
        """
        return None

    def checks(self) -> Iterator[Check]:
        """Yield the results of all checks that need no trial job, prerequisites first."""
        yield from ()

    def bootstrap(self, requirements: Sequence[str]) -> str | None:
        """Return the script that prepares a machine for jobs at its first boot; None: this site launches none.

        :param requirements: Airflow and Lading, as pip requirements
        :raises ValueError: the table does not say where to install them
        """
        return None

    def bill(self) -> str | None:
        """Describe what a trial cost; None: nothing is billed by the hour."""
        return None

    def policy(self) -> str | None:
        """Return the minimal policy for this site's account, in the provider's format; None: it has no account."""
        return None

    def clean(self, older_than: float, keep: Collection[str], dry_run: bool) -> Iterator[RemovedLeftovers]:
        """Remove leftovers at the site, and its leftovers on this machine, except what a live job needs.

        A controller can use the site at the same time through another object.

        :param older_than: seconds since the last change by the site's own clock, at least an hour
        :param keep: the tokens of everything that Airflow has at this site: jobs, and runs of job scripts
        :param dry_run: only report what would be removed
        :raises OSError: the site could not be reached, so nothing is known about its leftovers
        """
        yield from ()

    @classmethod
    def refuse(cls, config: Config) -> None:
        """Reject values that the table's model cannot check.

        :raises ValueError: a value is not valid for this kind; the message names it and the remedy
        """

    @classmethod
    def exclusive(cls, config: Config) -> Mapping[str, str]:
        """Return what no other site in the file can share, such as machines that this site fills.

        :returns: its description in messages, by a key that identifies it
        """
        return {}

    def dialect(self) -> dict[str, Any] | None:
        """Return what native hints for a batch system are checked against; None: this site has no batch system.

        :returns: a JSON object with ``system``, the name of the batch system, ``profile``, that of the site,
            ``native``, the native directives of all jobs there, and ``takes_layouts``: whether each job is a batch job
            of its own, which can have nodes, ppn and threads
        """
        return None

    def script(self, envelope: Envelope) -> str | None:
        """Return the script that would be submitted if this were the only job; None: this site submits none.

        The site is not contacted, and nothing changes.

        :raises ValueError: the batch system does not accept such a job; the message says why
        """
        return None

    def refusals(self, envelopes: Sequence[Envelope]) -> list[RequestRefusal | None]:
        """Ask the batch system which of these jobs it would refuse; None: it would accept one, or has no such command.

        Nothing is submitted, and the site can be in use by a controller.

        :raises OSError: none is refused for good, and not all of them could be asked about
        """
        return [None] * len(envelopes)

    def staging_area(self, location: str) -> StagingArea | None:
        """Return where input files of a location's jobs are kept; None: files cannot be staged there.

        :raises LookupError: the location does not exist, or was not reached yet
        """
        return None

    @abstractmethod
    def potential(self) -> Sequence[Location]:
        """Return all locations that can ever exist, without contacting the site; empty: unknown.

        A job that fits none of them is refused, so the list has to cover everything that can appear. A location that
        has been observed replaces the one of the same name.
        """

    @abstractmethod
    def observe(self) -> Observation:
        """Ask the site for its current locations and for what has happened.

        :raises OSError: it could not be reached; nothing is concluded from that
        """

    @abstractmethod
    def put(self, envelopes: Mapping[str, Sequence[Envelope]]) -> None:
        """Give jobs to locations. A job that a location already has is not started again.

        :param envelopes: by the name of the location
        :raises OSError: it failed; the controller gives the jobs again
        """

    @abstractmethod
    def cancel(self, reasons: Mapping[str, Mapping[str, Reason]]) -> None:
        """Cancel jobs, waiting or running.

        :param reasons: by the name of the location, the reason for each job by its token
        :raises OSError: it failed; the controller tries again
        """

    def recall(self, tokens: Mapping[str, Sequence[str]]) -> None:
        """Take back jobs that have not started; each yields an event ``returned``. A job that has started, or starts
        meanwhile, continues.

        A site that starts all jobs at once has none to return.

        :param tokens: by the name of the location
        :raises OSError: it failed; the controller tries again
        """

    @abstractmethod
    def close(self, how: str, timeout: float) -> None:
        """Detach from the site within ``timeout`` seconds.

        :param how: ``cancel`` kills its jobs; ``leave`` lets started jobs finish and leaves nothing behind after them;
            ``hand_over`` leaves everything to the next controller
        """


@dataclass(frozen=True, slots=True)
class Order:
    """A machine or an allocation to launch.

    :param name: that of the future location; it is unique, so the machine can be found again after any failure
    """

    name: str
    launch: Launch


class Holding(ABC):
    """A site whose locations can reserve room for upcoming jobs, so that these can start together with others.

    The result of a hold is an event with the hold's token: ``held``, ``refused`` if there is no room, ``hold_lost`` if
    the room was lost later. A job given to the location starts in the room held for it.
    """

    @abstractmethod
    def hold(self, holds: Mapping[str, Sequence[Hold]]) -> None:
        """Hold room, or extend holds. A hold expires unless it is extended, also if its controller forgot it.

        :param holds: by the name of the location
        :raises OSError: it failed; the controller tries again
        """

    @abstractmethod
    def drop(self, tokens: Mapping[str, Collection[str]]) -> None:
        """Release held room; holds that are not released expire.

        :param tokens: those of the holds, by the name of the location
        :raises OSError: it failed
        """


@dataclass(frozen=True, slots=True)
class ListedInstance:
    """A launched instance as its provider lists it, whether or not a controller knows it.

    :param site: the site that launched it, which may have left the sites file since
    :param name: that of the location it was launched for
    :param id: the provider's id
    :param state: the provider's word
    :param launched_at: epoch seconds; None: unknown
    """

    site: str
    name: str
    id: str
    state: str
    instance_type: str
    zone: str
    capacity_type: str
    usd_per_hour: float | None = None
    launched_at: float | None = None


class Tenancy(NamedTuple):
    """Whose jobs a location has run in its whole life, for the attribution of its cost.

    :param team: the Airflow team; ``shared``: several; None: none
    :param dag_id: the Dag; ``shared``: several; None: none
    """

    team: str | None
    dag_id: str | None


class ElasticSite(Site[Config]):
    """A site whose locations are launched on demand and released when they are no longer needed.

    The market of an observation says what can be launched. An order is stored before the site receives it, and an order
    given twice is launched once. :meth:`observe` reports a launched location until it has terminated, followed by an
    event ``released``. A job given to a location that does not exist, or no longer exists, comes back by an event
    ``returned``, and so does a recalled job.
    """

    launches = True

    @abstractmethod
    def launch(self, orders: Sequence[Order]) -> None:
        """Launch machines.

        :raises OSError: it failed; an order that later observations do not report was not launched
        """

    @abstractmethod
    def release(self, reasons: Mapping[str, Reason]) -> None:
        """Release locations once their running jobs have finished; jobs that have not started come back.

        :param reasons: by the name of the location
        :raises OSError: it failed; the controller tries again
        """

    def note_tenants(self, tenants: Mapping[str, Tenancy]) -> None:
        """Record whose jobs are on each location, to attribute its cost. It is called often and must not block.

        :param tenants: by the name of the location, for locations that have been given a job
        """

    def priced(self) -> MachineMarket | None:
        """Ask the provider for what can be launched now, with prices; None: nothing, or prices are unknown.

        Works without a controller, and does not disturb one.

        :raises OSError: the provider could not be reached
        """
        return None

    def listed_instances(self) -> Sequence[ListedInstance] | None:
        """Ask the provider for all live instances of this deployment; None: there is no such list.

        Works without a controller, and does not disturb one.

        :raises OSError: the provider could not be reached
        """
        return None

    def end(self, ids: Sequence[str]) -> Mapping[str, float]:
        """Terminate instances from :meth:`listed_instances` at once, with all that runs on them. For use when no
        controller is running.

        :returns: by id, when billing stops, epoch seconds, as far as the provider states it
        :raises OSError: it failed
        """
        raise OSError(f"site {self.name}: only a controller can terminate what was launched there; start one")


# Results of checks and of clean-ups.


@dataclass(frozen=True, slots=True)
class Check:
    """The result of one check of a site, or of something that it needs.

    :param what: what was checked
    :param good: whether it passed
    :param message: the details, or what is wrong and how to fix it
    :param warns: whether it passed with a warning, or could not be checked
    """

    what: str
    good: bool
    message: str
    warns: bool = False


@dataclass(frozen=True, slots=True)
class RemovedLeftovers:
    """Leftovers of one kind that were removed at a site.

    :param kind: as text: ``runs``, ``logs``
    :param number: how many were removed, or would be
    :param mib: their size in MiB
    :param trouble: what could not be removed, and why, as text; None: nothing
    """

    kind: str
    number: int
    mib: float
    trouble: str | None = None


@dataclass(frozen=True, slots=True)
class RequestRefusal:
    """Why the batch job of a job would be refused.

    :param system: the batch system that refuses it; None: Lading itself does
    :param is_final: whether it will never be accepted; otherwise it is refused for now
    :param option: the batch system's option that is the cause; None: unknown
    :param value: of the option; None: unknown
    :param advice: the rest of the sentence: the value that was probably meant, and the valid ones
    """

    message: str
    system: str | None = None
    is_final: bool = True
    option: str | None = None
    value: str | None = None
    advice: str = ""


@dataclass(frozen=True, slots=True)
class StagingArea:
    """The folder at a site that keeps input files for its jobs.

    :param name: unique among the staging areas of the site; locations with a common folder share one
    :param transport: the connection to it, which can also read other files on the same machines
    :param root: Lading's own folder there
    """

    name: str
    transport: Transport
    root: str

    @property
    def folder(self) -> str:
        """Created on first use."""
        return f"{self.root}/inputs"
