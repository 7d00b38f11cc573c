"""A job's requirements other than amounts, matched against the machines of sites; reasons name what no site has.
Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from lading.scheduling.model.gpus import nearest, type_of
from lading.scheduling.model.job import PlannedJob
from lading.scheduling.model.location import Location
from lading.scheduling.model.machine_traits import ANY_ARCH, IS, valid_types
from lading.scheduling.model.reasons import Reason, because
from lading.scheduling.text.printable import shortened


@dataclass(frozen=True, slots=True)
class MatchedMachine:
    """An existing or possible location, at its site.

    :param arch: the architecture of jobs there that name neither one nor an instance type; None: any
    """

    site: str
    location: Location
    arch: str | None = None


def default_arch(arch: str, locations: Iterable[Location]) -> str | None:
    """The architecture of jobs that name none at a site; None if it makes no difference, or any suits them.

    :param arch: the site's setting
    """
    return arch if arch != ANY_ARCH and any(each.arch not in (None, arch) for each in locations) else None


def resolved(job: PlannedJob, arch: str | None) -> PlannedJob:
    """The job with the site's default architecture, unless it names one."""
    return job if arch is None or names_arch(job) else replace(job, arch=arch)


def names_arch(job: PlannedJob) -> bool:
    """Whether a job names an architecture, or an instance type, which implies one."""
    return job.arch is not None or job.instance_type is not None


def granting(job: PlannedJob, machines: Iterable[MatchedMachine]) -> list[MatchedMachine]:
    """The machines that meet a job's requirements other than amounts."""
    return [each for each in machines if each.location.kind.grants(resolved(job, each.arch).wish)]


def lacking(job: PlannedJob, machines: Sequence[MatchedMachine]) -> Reason:
    """Why none of these machines meets a job's requirements, with what is available.

    Options of a batch system and layouts do not concern machines and are ignored.
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
    """Why none of these locations, each at a site of its own, can ever give a job the nodes that it requests."""
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
    """The requirements of a job that no single machine meets together."""
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
    alike = dict.fromkeys(f"{_traits(each.location)} at site {each.site!r}" for each in machines)
    some = list(alike)[:8]
    return "; ".join(some) + ("; ..." if len(alike) > len(some) else "")


def _traits(location: Location) -> str:
    traits = [location.instance_type, location.arch, location.os, location.capacity_type]
    with_features = f" with {', '.join(sorted(location.features))}" if location.features else ""
    return " ".join(trait for trait in traits if trait) + with_features
