"""What jobs ask of machines besides amounts, against what there is at sites; what no site has is named. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from lading.scheduling.gpus import nearest, type_of
from lading.scheduling.job import PlannedJob
from lading.scheduling.location import Location
from lading.scheduling.machine_traits import ANY_ARCH, IS, valid_types
from lading.scheduling.reasons import Reason, because
from lading.scheduling.text.printable import shortened

# How many machines that differ only in amounts are described.
MOST_DESCRIBED = 8


@dataclass(frozen=True, slots=True)
class MatchedMachine:
    """A location that there is or could be, at its site.

    :param arch: the architecture of jobs there that name neither one nor an instance type; None: any
    """

    site: str
    location: Location
    arch: str | None = None


def default_arch(arch: str, locations: Iterable[Location]) -> str | None:
    """The architecture of jobs that name none at a site; None where it makes no difference, or all will do.

    :param arch: that which the site says
    """
    return arch if arch != ANY_ARCH and any(each.arch not in (None, arch) for each in locations) else None


def resolved(job: PlannedJob, arch: str | None) -> PlannedJob:
    """A job with the default architecture of a site, unless it names one."""
    return job if arch is None or names_arch(job) else replace(job, arch=arch)


def names_arch(job: PlannedJob) -> bool:
    """Whether a job names an architecture, or an instance type, which implies one."""
    return job.arch is not None or job.instance_type is not None


def granting(job: PlannedJob, machines: Iterable[MatchedMachine]) -> list[MatchedMachine]:
    """The machines that are what a job asks for besides amounts."""
    return [each for each in machines if each.location.kind.grants(resolved(job, each.arch).wish)]


def lacking(job: PlannedJob, machines: Sequence[MatchedMachine]) -> Reason:
    """Why none of some machines is what a job asks for, with what there is.

    Options of a batch system and layouts do not concern machines, and are ignored.
    """
    for hint, wanted, values in (
        ("arch", job.arch, lambda each: {each.location.arch or job.arch}),
        ("os", job.os, lambda each: {each.location.os}),
        ("capacity_type", job.capacity_type, lambda each: {each.location.capacity_type}),
    ):
        there = _all(values, machines)
        if wanted not in (None, ANY_ARCH) and wanted not in there:
            return because("hint_unavailable", hint=hint, value=shortened(wanted), valid=_valid(there))
    if job.instance_type is not None:
        types = _all(lambda each: {each.location.instance_type}, machines)
        if job.instance_type not in types:
            valid = valid_types(job.instance_type, types)
            return because("hint_unavailable", hint="instance_type", value=shortened(job.instance_type), valid=valid)
    features = _all(lambda each: each.location.features, machines)
    if (gpu := type_of(job.features - features)) is not None:
        return because("hint_unavailable", hint="gpus", value=f"type {shortened(gpu)}", valid=nearest(gpu, features))
    for hint, named in (("features", False), ("properties", True)):
        asked, there = ({word for word in names if (IS in word) == named} for names in (job.features, features))
        if missing := sorted(asked - there):
            value = ", ".join(map(shortened, missing))
            return because("hint_unavailable", hint=hint, value=value, valid=_valid(there))
    return because("no_machine_has_all", wish=_wished(job, machines), machines=_described(machines))


def too_many_nodes(job: PlannedJob, locations: Mapping[str, Location]) -> Reason:
    """Why none of some locations, each of a site of its own, can ever give a job the nodes that it asks for."""
    where = f"queue {job.queue!r} of " if job.queue else ""
    most = "; ".join(f"{where}site {name!r} has {each.nodes_for(job)}" for name, each in locations.items())
    one = f"{where}site {next(iter(locations))!r}" if len(locations) == 1 else "any one site"
    return because("too_many_nodes", nodes=job.nodes, place=one, most=most)


def _all(values: Callable[[MatchedMachine], Iterable[str | None]], machines: Iterable[MatchedMachine]) -> set[str]:
    return {value for each in machines for value in values(each) if value}


def _valid(there: Iterable[str]) -> str:
    names = ", ".join(sorted(there))
    return f"valid: {names}" if names else "because no machine has been given any"


def _wished(job: PlannedJob, machines: Sequence[MatchedMachine]) -> str:
    """What a job asks for, as far as no machine alone has all of it."""
    defaults = {each.arch for each in machines if resolved(job, each.arch).arch != job.arch}
    arch = " or ".join(sorted(filter(None, defaults))) if job.arch is None else job.arch.replace(ANY_ARCH, "")
    parts = [
        arch and (f"has arch {arch}" if job.arch else f"has arch {arch} (that of tasks without the hint arch)"),
        job.os and f"has os {job.os}",
        job.capacity_type and f"is {job.capacity_type}",
        job.instance_type and f"is of type {shortened(job.instance_type)}",
        job.features and f"has {', '.join(sorted(job.features))}",
    ]
    return " and ".join(part for part in parts if part)


def _described(machines: Sequence[MatchedMachine]) -> str:
    """What machines are besides amounts, those that are alike once."""
    alike = dict.fromkeys(f"{_traits(each.location)} at site {each.site!r}" for each in machines)
    some = list(alike)[:MOST_DESCRIBED]
    return "; ".join(some) + ("; ..." if len(alike) > len(some) else "")


def _traits(location: Location) -> str:
    traits = [location.instance_type, location.arch, location.os, location.capacity_type]
    with_features = f" with {', '.join(sorted(location.features))}" if location.features else ""
    return " ".join(trait for trait in traits if trait) + with_features
