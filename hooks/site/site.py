"""A site: a place that can run jobs. Each kind of site is one class derived from ``Site``.

The interface is bulk by its types: one ``observe``, one ``put`` and one ``cancel`` per tick, whatever the number of
jobs. A site never decides anything and has no access to Airflow's database.

A controller has a thread for each site, in which it calls all that asks the site or does something there, one call
after the other. A call that takes long delays what else is to be done at this site, and nothing elsewhere.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, TypeVar

from lading.hooks.site.config import SiteConfig
from lading.hooks.site.observation import Observation
from lading.hooks.spool.events import reason_of
from lading.hooks.spool.hold import Hold
from lading.hooks.spool.spool import Envelope
from lading.scheduling.location import Location
from lading.scheduling.machine_traits import DEFAULT_ARCH
from lading.scheduling.matching.admission import Admission
from lading.scheduling.matching.market import MachineMarket
from lading.scheduling.provisioning import Launch
from lading.scheduling.reasons import Reason

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
    """Whether its jobs can read the sites file, for they run on the machine that has it."""
    trial_costs: ClassVar[bool] = False
    """Whether a trial job costs money, so that it is run on request alone."""
    launches = False
    """Whether its locations are launched, which an :class:`ElasticSite` can do."""
    requests_are_limits = False
    """Whether what a job is packed by is also the most that it gets: its batch system ends one that uses more."""
    holds = False
    """Whether its locations hold room for jobs that are to come, which a :class:`Holding` site can do."""
    seconds_ahead: float = 0.5
    """For how long a location of short jobs is to be busy with what is prefetched to it: until it can be given more."""
    jwt_seconds: float = 600.0
    """How long the JWT of a job that is sent there is valid; the controller renews it while the job waits."""

    def __init__(self, name: str, config: Config, folder: Path) -> None:
        self.name = name
        self.config = config
        self.folder = folder

    @property
    def admission(self) -> Admission:
        """Whose jobs it takes."""
        return self.config.admission

    @property
    def arch(self) -> str:
        """The architecture of the jobs there that name neither one nor an instance type, or ``any``."""
        return DEFAULT_ARCH

    def trial(self, folder: Path) -> Site[Config]:
        """The same site in a folder of its own, for a trial job; ``close`` removes all traces of it but the folder.

        :param folder: of its own
        """
        return type(self)(self.name, self.config, folder / "spool")

    def parts(self) -> Mapping[str, Site[Config]]:
        """What a trial job is to be run on each of, by what it is called: the site, or each of its machines."""
        return {f"site {self.name}": self}

    def trial_sizes(self) -> list[int]:
        """How many trial jobs are given together, by submission; where the site has arrays, several are one."""
        return [1]

    def failing(self) -> str | None:
        """Why a trial job will not end well here, where that is known before it has ended; None: it may."""
        return None

    def diagnosis(self, event: Mapping[str, Any] | None, timeout: float) -> str:
        """Why a trial job has failed or has not ended, and what to change.

        :param event: that reports its end; None: the time is over
        :param timeout: seconds that it had
        """
        if event is not None:
            return str(reason_of(event["reason"]))
        return f"the trial job did not end within {timeout:g} s; give more time: --timeout {max(600, 2 * int(timeout))}"

    def misunderstanding(self, event: Mapping[str, Any], envelope: Envelope) -> str | None:
        """What of a trial job that has ended well the site has taken for something else than was meant; None: nothing.

        :param event: that reports its end
        """
        return None

    def checks(self) -> Iterator[Check]:
        """What can be looked at before a trial job, in the order in which it is needed."""
        yield from ()

    def bootstrap(self, requirements: Sequence[str]) -> str | None:
        """What a machine is to be given at its first boot so that jobs can run there; None: machines are not launched.

        :param requirements: Airflow and Lading, as pip takes them
        :raises ValueError: the table does not say where they are to be
        """
        return None

    def bill(self) -> str | None:
        """What a trial has cost, as text; None: nothing that is billed by the hour."""
        return None

    def policy(self) -> str | None:
        """The least that this site's account must be allowed, in the form of its provider; None: it has no account."""
        return None

    def clean(self, older_than: float, keep: Collection[str], dry_run: bool) -> Iterator[RemovedLeftovers]:
        """Remove what is left behind, at the site and of it on this machine; never what a live job needs.

        A controller may work with the site at the same time, from another object.

        :param older_than: seconds, at least an hour, for which nothing has changed in it, by the site's own clock
        :param keep: the tokens of all that Airflow has there: jobs of this site, runs of job scripts
        :param dry_run: only report what would be removed
        :raises OSError: the site could not be asked; nothing is concluded from that
        """
        yield from ()

    @classmethod
    def refuse(cls, config: Config) -> None:
        """Check what the model of the table cannot know.

        :raises ValueError: a value is not valid for this kind; the message names it and what to do
        """

    @classmethod
    def exclusive(cls, config: Config) -> Mapping[str, str]:
        """What no other site of the file may use, such as machines that this one fills.

        :returns: what each is called in a message, by what distinguishes it from others of its kind
        """
        return {}

    def dialect(self) -> dict[str, Any] | None:
        """By what native hints for a batch system are checked; None: this is no batch site, and takes none.

        :returns: ``system``, the name of the batch system, ``profile``, that of the site, and ``takes_layouts``:
            whether each job is a batch job of its own, which may have nodes, ppn and threads; all of it JSON
        """
        return None

    def script(self, envelope: Envelope) -> str | None:
        """The script that would be submitted now if this were the only job; None: nothing is ever submitted here.

        The site is not asked, and nothing is changed.

        :raises ValueError: the batch system does not take such a job; the message says why
        """
        return None

    def staging_area(self, location: str) -> StagingArea | None:
        """Where input files are kept for the jobs of a location; None: nothing can be brought there.

        :raises LookupError: the location is not there, or was not reached yet
        """
        return None

    @abstractmethod
    def potential(self) -> Sequence[Location]:
        """All that could ever be there, known without asking; empty: that is not known.

        A job that nothing of this can hold is refused, so it has to cover all that may appear. What has been seen of a
        location counts in the place of the one of its name.
        """

    @abstractmethod
    def observe(self) -> Observation:
        """Ask the site what there is and what has happened.

        :raises OSError: it could not be asked; nothing is concluded from that
        """

    @abstractmethod
    def put(self, envelopes: Mapping[str, Sequence[Envelope]]) -> None:
        """Give jobs to locations; one that a location has already is not started twice.

        :param envelopes: by the name of the location
        :raises OSError: it could not be done; the jobs are given again
        """

    @abstractmethod
    def cancel(self, reasons: Mapping[str, Mapping[str, Reason]]) -> None:
        """End jobs, waiting or running.

        :param reasons: by the name of the location, why, by the token of the job
        :raises OSError: it could not be done; it is asked again
        """

    def recall(self, tokens: Mapping[str, Sequence[str]]) -> None:
        """Take back jobs that have not begun; for each that has not, there is an event ``returned``. What has begun, or
        begins meanwhile, goes on.

        A site that begins all that it is given at once has none to give back.

        :param tokens: by the name of the location
        :raises OSError: it could not be done; it is asked again
        """

    @abstractmethod
    def close(self, how: str, timeout: float) -> None:
        """Let go of the site within ``timeout`` seconds.

        :param how: ``cancel`` ends its jobs; ``leave`` lets those run that have started, and nothing is left behind
            when they have ended; ``hand_over`` leaves everything to the next controller
        """


@dataclass(frozen=True, slots=True)
class Order:
    """A machine to be launched, or an allocation.

    :param name: of the location that it becomes, unique: by it the machine is found again whatever happens
    """

    name: str
    launch: Launch


class Holding(ABC):
    """A site whose locations can hold room for jobs that are to come, which so begin together with others.

    The outcome of a hold is an event: ``held``, ``refused`` where there is no room, ``hold_lost`` where there is none
    any more; their token is that of the hold. The job for which room is held starts in it when it is given there.
    """

    @abstractmethod
    def hold(self, holds: Mapping[str, Sequence[Hold]]) -> None:
        """Hold room, or extend a hold: each hold runs out by itself, and so does one that is not known any more.

        :param holds: by the name of the location
        :raises OSError: it could not be done; it is asked again
        """

    @abstractmethod
    def drop(self, tokens: Mapping[str, Collection[str]]) -> None:
        """Give room back; what is not given back runs out.

        :param tokens: of holds, by the name of the location
        :raises OSError: it could not be done
        """


@dataclass(frozen=True, slots=True)
class ListedInstance:
    """Something that was launched, as its seller lists it, whether or not a controller knows it.

    :param site: by which it was launched; it may not be in the sites file any more
    :param name: of the location that it was to become
    :param id: by which the seller knows it
    :param state: in the seller's word
    :param launched_at: epoch seconds; None: that is not known
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
    """Whose all jobs are that a location has ever had.

    :param team: Airflow's team; ``shared``: they are of several; None: of none
    :param dag_id: their Dag, likewise
    """

    team: str | None
    dag_id: str | None


class ElasticSite(Site[Config]):
    """A site whose locations are launched, and released when they are not needed any more.

    What can be launched is the market of an observation. An order is stored before the site gets it; one that is
    given again is not launched twice. What was launched is named by :meth:`observe` until it has ended, and its end is
    an event ``released``. A job that is given to a location that is not there (any more) comes back by an event
    ``returned``, as those do that are recalled.
    """

    launches = True

    @abstractmethod
    def launch(self, orders: Sequence[Order]) -> None:
        """Launch machines.

        :raises OSError: it could not be done; what is not named by a later look was not launched
        """

    @abstractmethod
    def release(self, reasons: Mapping[str, Reason]) -> None:
        """Let locations go when the jobs that run there have ended; what has not begun there comes back.

        :param reasons: by the name of the location, why
        :raises OSError: it could not be done; it is asked again
        """

    def note_tenants(self, tenants: Mapping[str, Tenancy]) -> None:
        """Take note of whose the jobs on locations are, for who is billed; it returns at once, and is called often.

        :param tenants: by the name of the location, of those that have been given a job
        """

    def priced(self) -> MachineMarket | None:
        """What can be bought there, asked of its seller now; None: nothing is, or its price is not known.

        It needs no controller, and disturbs none.

        :raises OSError: it could not be asked
        """
        return None

    def listed_instances(self) -> Sequence[ListedInstance] | None:
        """All that lives and was launched for this deployment, asked of its seller; None: there is no such list.

        It needs no controller, and disturbs none.

        :raises OSError: it could not be asked
        """
        return None

    def end(self, ids: Sequence[str]) -> Mapping[str, float]:
        """End at once what :meth:`listed_instances` has named, and all that runs there: for when no controller does it.

        :returns: by id, up to when it is billed, epoch seconds, as far as its seller states it
        :raises OSError: it could not be done
        """
        raise OSError(f"site {self.name}: only a controller ends what was launched there; start one")


# What a look at a site has found, and what was removed there.


@dataclass(frozen=True, slots=True)
class Check:
    """What a check of a site, or of all that it needs, found.

    :param what: what was checked
    :param good: whether all is well
    :param message: the details, or what is wrong and what to do
    :param warns: whether all is well but could be better, or could not be examined
    """

    what: str
    good: bool
    message: str
    warns: bool = False


@dataclass(frozen=True, slots=True)
class RemovedLeftovers:
    """What was removed at a site of one sort of things that were left behind.

    :param kind: the sort, as text: ``runs``, ``logs``
    :param number: how many were removed, or would be
    :param mib: MiB that they took
    :param trouble: what could not be removed, and why, as text; None: nothing
    """

    kind: str
    number: int
    mib: float
    trouble: str | None = None


# Where files are kept for jobs.


@dataclass(frozen=True, slots=True)
class StagingArea:
    """Where files are kept for jobs.

    :param name: unlike that of any other staging area of the site; locations that share the folder share it
    :param transport: the way there, by which other files of the same machines are read as well
    :param root: Lading's own folder there
    """

    name: str
    transport: Transport
    root: str

    @property
    def folder(self) -> str:
        """Made where it is missing."""
        return f"{self.root}/inputs"
