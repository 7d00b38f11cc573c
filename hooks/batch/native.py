"""Native directives of tasks: which ones a batch site accepts, and how they override those of the site."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lading.hooks.batch.directives import ADD_UP, settings
from lading.hooks.batch.site_config import SiteRules
from lading.hooks.batch.system import ArrayRange, BatchJobRequest, BatchSystem, Profile, Unsupported
from lading.scheduling.hints.hints import LAYOUT_HINTS

SHELL = "/bin/bash"
NO_RULES = SiteRules()
# PBS Pro refuses a job array that it is not allowed to rerun (qsub: "cannot submit non-rerunable Array Job"). No task
# runs twice because of that: its envelope can be taken only once. An element of a job script's array does run again
# after a node failure.
ARRAYS: Mapping[str, Mapping[str, str | bool]] = {"pbspro": {"r": "y"}}
# Options that make the submit command do something other than submit one job to this batch system and print its ID.
_PBS = frozenset(("C", "I", "V", "W block", "X", "f", "h", "version", "x", "z"))
_SLURM = "Q V W gid h help ignore-pbs parsable quiet test-only uid usage version wait wrap"
NO_SUBMISSION = {
    "slurm": frozenset(_SLURM.split()),
    "pbspro": _PBS,
    "torque": _PBS,
    "lsf": frozenset(("I", "IS", "ISp", "ISs", "IX", "Ip", "Is", "K", "V", "h", "json", "jsdl", "pack", "yaml")),
    "sge": frozenset(("C", "V", "b", "clear", "help", "inherit", "jsv", "now", "pty", "sync", "terse", "verify", "w")),
}

Directives = Mapping[str, str | bool]


def own_directives(system: BatchSystem, *, array: bool) -> dict[str, str | bool]:
    """Return the native directives that Lading itself adds to its batch jobs.

    :param array: whether the job is a job array
    """
    return {**system.isolation, **once(system, array=array)}


def once(system: BatchSystem, *, array: bool) -> dict[str, str | bool]:
    """Return the native directives that prevent a requeue, as far as the batch system accepts them.

    :param array: whether the job is a job array
    """
    return {**system.no_requeue, **(ARRAYS.get(system.name, {}) if array else {})}


def refuse(native: Directives, system: BatchSystem, profile: Profile, rules: SiteRules = NO_RULES) -> None:
    """Check the native directives of a task.

    :raises Unsupported: the site does not accept one, Lading sets the same thing itself, or nothing would be submitted
        with it; the message names the directive
    """
    if not native:
        return
    rules.check_native(native, system)
    taken = _taken(system, profile)
    given = {key: value for key, value in native.items() if value is not False}
    for key, value in given.items():
        attached = system.options(key) - {key}
        for name in map(system.one_name, [*system.settings(key, value), *attached]):
            if name in taken and name not in ADD_UP and not _is_other_gres(system, profile, name, value):
                raise Unsupported(
                    f"{key} ({system.native_directive(key, value)}) duplicates what Lading sets from "
                    f"other hints and the site: {taken[name]}"
                )
            if name in NO_SUBMISSION.get(system.name, ()) or _abbreviates(system, name):
                raise Unsupported(
                    f"{key}: with this directive, no batch job is submitted, or Lading cannot track it; leave it out"
                )
    system.directives(BatchJobRequest(native=given), profile)  # the native directives can also conflict with each other


def over(native: Directives, lower: Directives, system: BatchSystem) -> dict[str, str | bool]:
    """Merge the native directives of a task into those of its site.

    If both set the same thing, the task's directive wins. The value False removes a directive of the site.

    :raises Unsupported: a key and its value cannot be a directive
    """

    def set_by(key: str, value: str | bool) -> set[str]:
        return set(map(system.one_name, system.settings(key, value)))

    named = set().union(*(set_by(*each) for each in native.items()))
    kept = {key: value for key, value in lower.items() if key not in native and named.isdisjoint(set_by(key, value))}
    return {**kept, **{key: value for key, value in native.items() if value is not False}}


def _is_other_gres(system: BatchSystem, profile: Profile, name: str, value: object) -> bool:
    """Whether a directive requests SLURM generic resources (GRES) other than GPUs, which have their own hint."""
    gpus = (profile.gpu_resource or "gpu").partition(":")[0]
    asked = {each.partition(":")[0] for each in str(value).split(",")}
    are_names = all(each[:1].isalpha() for each in asked)
    return system.name == "slurm" and name == "gres" and are_names and not {gpus, "gpu", "none"} & asked


def _abbreviates(system: BatchSystem, name: str) -> bool:
    """Whether sbatch would expand this name to a forbidden option or to one that identifies jobs.

    sbatch accepts unambiguous abbreviations of long options (getopt_long(3)).
    """
    longer = (*NO_SUBMISSION["slurm"], "array", "clusters", "job-name")
    return system.name == "slurm" and len(name) > 1 and any(each.startswith(name) and each != name for each in longer)


def _taken(system: BatchSystem, profile: Profile) -> dict[str, str]:
    """Map each setting that Lading uses for a task's batch job to its directive and to what authors can do instead."""
    first = system.first_index
    common = {"jobname": "L0", "stdout": "/dev/null", "stderr": "/dev/null"}
    array = {"array": ArrayRange(f"{max(first, 1)}-{max(first, 1) + 1}")}
    directives = [system.native_directive(key, value) for key, value in own_directives(system, array=True).items()]
    directives += system.interpreter_directives(SHELL)
    taken = {system.one_name(name): f"{each}; leave it out" for each in directives for name in settings(each)}
    # Some of these need a key in the site's profile. Without it, no task can request them either.
    asked: tuple[tuple[dict[str, Any], str], ...] = (
        (common, ""),
        ({"stderr": "/dev/stderr"}, ""),
        (array, ""),
        ({"queue": "the_queue"}, "queue"),
        ({"time": 3600}, "time"),
        ({"mem": 1000}, "memory"),
        ({"gpus": 1}, "gpus, such as 2, or 2 of a type: 'a100:2'"),
        ({"nodes": 1, "ppn": 1, "threads": 2}, ", ".join(LAYOUT_HINTS)),
    )
    for fields, hint in asked:
        try:
            own = system.resource_directives(BatchJobRequest(**fields), profile)
        except Unsupported:
            continue
        advice = f"use the hint {hint}" if hint else "leave it out"
        taken |= {system.one_name(name): f"{each}; {advice}" for each in own for name in settings(each)}
    return taken
