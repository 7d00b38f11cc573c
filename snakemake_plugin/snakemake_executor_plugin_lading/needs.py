"""Converts the threads and resources of a Snakemake job to Lading's hints."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, NamedTuple

from lading.operators.resources import resources
from lading.scheduling.hints.hints import HintError, Hints
from lading.scheduling.matching.ranking import QueueWaits
from lading.scheduling.model.prediction import History
from lading.scheduling.model.resources import Resources
from lading.scheduling.model.site_names import is_named
from lading.scheduling.sizing.auto import sized
from lading.scheduling.sizing.right_size import NOTHING_KNOWN, Sizes
from snakemake_executor_plugin_lading import batch_resources
from snakemake_executor_plugin_lading.batch_resources import NeedsError, number, text

if TYPE_CHECKING:
    from lading.plugin.published import PublishedSite

__all__ = ["NeedsError", "RunSites", "check_limits", "executor_config", "for_users", "forecast_hints", "needs_of"]

# Memory that a job can use in addition to its rule's command, MiB: for its Snakemake; for a direct command, for shells.
OVERHEAD, DIRECT_OVERHEAD = 256, 16
MB, MIB = 10**6, 2**20
# The factor by which the next try gets more of what ran out, unless its rule requests more itself.
FACTOR = 2
LIMITS = ("rules", "all", "none")
# The request of a job that has no resources.
DEFAULT_RESOURCES = Resources(cpus=1, memory=512)
# How users of Snakemake set the hints.
IN_RULES = {
    "cpus": "threads", "ppn × threads": "resource tasks × threads", "memory": "resource mem_mb",
    "disk": "resource disk_mb", "gpus": "resource gpu", "site": "resource lading_site", "time": "resource runtime",
    "queue": "resource slurm_partition", "native": "option of the batch system", "hurry": "--lading-hurry",
    "finish_by": "--lading-finish-by",
}  # fmt: skip
# Advice that concerns Airflow only, as a part of a sentence or in parentheses.
OF_AIRFLOW = re.compile(r"(?<![\w/.-])(Airflow|airflow[ -]lading)(?![\w/-])|\[(lading|core)\]")
OF_AIRFLOW_ASIDE = re.compile(r" \([^()]*(airflow lading|\[lading\])[^()]*\)")
# Airflow's terms, and what to call them for users of Snakemake.
WORDS = {
    "another deployment( of Lading)?": "another workflow",
    "this deployment": "this workflow",
    "task instance": "job",
    "the task": "the job",
    "a task": "a job",
    "the scheduler": "Snakemake",
    "Dag": "workflow",
    "Dags": "workflows",
}
# Longer jobs are always batch jobs, however long those wait, because a job restarts if its allocation ends. Seconds.
LONGEST_SHORT = 600.0
# The number of standard deviations above the median below which nine of ten jobs of a rule are.
DEVIATIONS = NormalDist().inv_cdf(0.9)
# The resource of jobs whose memory and runtime Lading chooses, and the corresponding hints.
AUTO = "lading_auto"
AUTO_HINTS = {"mem": "memory", "runtime": "time"}


class JobNeeds(NamedTuple):
    """The request of a job.

    :param config: its hints
    :param columns: columns of its row that differ from those of the hints
    :param overhead: MiB that it can use in addition to the memory in its hints
    :param chosen: the hints that Lading has chosen
    :param decisions: how they were chosen, a sentence for each
    :param too_much: the memory that it requests, MiB, if that is more than this machine has; None: it is not
    """

    config: dict[str, Any]
    columns: dict[str, Any]
    overhead: int
    chosen: frozenset[str] = frozenset()
    decisions: tuple[str, ...] = ()
    too_much: int | None = None


@dataclass(frozen=True, slots=True)
class PastJobs:
    """How long jobs have run and waited, in earlier runs and in this one.

    :param waits: the waits of batch jobs in queues
    :param launches: the waits of allocations in queues
    """

    history: History = field(default_factory=History)
    waits: QueueWaits = field(default_factory=QueueWaits)
    launches: QueueWaits = field(default_factory=QueueWaits)

    def length(self, dag_id: str, rule: str, stated: float | None) -> float | None:
        """Return the seconds within which nine of ten jobs of a rule finish; None: unknown.

        :param stated: the time limit of the rule
        """
        levels = (((dag_id, rule), rule),)
        if not self.history.knows(levels):
            return stated
        found = self.history.predict(levels, stated)
        seconds = found.seconds * math.exp(DEVIATIONS * found.spread)
        return seconds if stated is None else min(seconds, stated)


def allocations_of(site: str) -> str:
    """Return the name of the site with the allocations for short jobs of a cluster."""
    return f"{site}-allocations"


@dataclass(frozen=True, slots=True)
class RunSites:
    """The sites where the jobs of a run can go.

    :param known: by name
    :param here: what this machine has for jobs, if it is the only site
    """

    known: Mapping[str, PublishedSite] = field(default_factory=dict)
    here: Resources | None = None

    def open_to(self, site: str | None) -> dict[str, PublishedSite]:
        """Return the sites where a job can go.

        :param site: the site that the job names; None: it names none
        """
        if site is None:
            return {name: each for name, each in self.known.items() if each.accept_untargeted}
        return {name: each for name, each in self.known.items() if is_named(name, site)}

    @property
    def with_allocations(self) -> list[str]:
        """The clusters with allocations for their short jobs."""
        return [name for name in self.known if allocations_of(name) in self.known]

    def shared(self, config: dict[str, Any], dag_id: str, rule: str, past: PastJobs) -> tuple[dict[str, Any], str]:
        """Decide whether a job shares an allocation. If so, return its new hints and the reason; if it is its own batch
        job, its unchanged hints and an empty text.

        It shares one if three of four such jobs waited longer in the queue than nine of ten jobs of its rule run,
        unless it needs its own batch job: for GPUs, several processes or nodes, or options that apply to a single job.

        :param config: its hints
        """
        hints = config["lading"]
        there = self.open_to(hints.get("site"))
        name = next(iter(there), "")
        twin = allocations_of(name)
        if len(there) != 1 or twin not in self.known or "cpus" not in hints or "gpus" in hints:
            return config, ""
        if set(hints.get("native", ())) - batch_resources.options_of_queues((there[name].dialect or {}).get("system")):
            return config, ""
        queue, nodes = hints.get("queue"), [each.capacity.cpus for each in self.known[twin].locations]
        seconds = past.length(dag_id, rule, hints.get("time"))
        wait = past.waits.expected(name, queue, hints["cpus"])
        if wait is None:  # most jobs ran in allocations recently
            wait = past.launches.expected(twin, queue, max(nodes, default=hints["cpus"]))
        if seconds is None or wait is None or not seconds < min(wait, LONGEST_SHORT):
            return config, ""
        others = {key: value for key, value in hints.items() if key != "site"}
        why = f"jobs of rule {rule} share allocations of {name}: they take {seconds:.0f} s, and wait {wait:.0f} s alone"
        return executor_config(**others, targets=[twin, name]), why

    def largest(self, site: str | None) -> Resources | None:
        """Return the largest cpus and memory of any machine or node where a job can go; None: unknown."""
        rooms = [each.capacity for found in self.open_to(site).values() for each in found.locations]
        if not rooms:
            return None
        return Resources(max(each.cpus for each in rooms), max(each.memory for each in rooms))

    def batch_site(self, hints: Hints, dag_id: str) -> str | None:
        """Return the site where a job has to run as its own batch job; None: it can also run elsewhere."""
        from lading.plugin.hint_checks import is_possible

        there = self.open_to(hints.site)
        able = [name for name, site in there.items() if is_possible({name: site}, hints, dag_id, None)]
        return able[0] if len(able) == 1 and (there[able[0]].dialect or {}).get("takes_layouts") else None

    @property
    def most_threads(self) -> int | None:
        """The limit on the threads of a rule, like ``--cores``; None: no limit, because another site can have more."""
        return None if self.here is None else max(1, math.floor(self.here.cpus))

    def check(self, hints: Hints, dag_id: str) -> None:
        """Refuse requests that no site can ever meet.

        :raises NeedsError: the text says what the sites have, and what to do
        """
        from lading.plugin.hint_checks import check_sites

        try:
            check_sites(hints, self.known, Resources(), dag_id)
        except HintError as error:
            said = for_users(str(error))
            raise NeedsError(f"{said}. {self._advice()}" if "more than" in said else said) from error

    def _advice(self) -> str:
        if self.here is not None:
            return "Run it at a larger site (--lading-sites-file), or request less: --set-resources RULE:NAME=VALUE"
        rooms = [each.capacity for site in self.known.values() for each in site.locations]
        most = max(rooms, key=lambda each: (each.cpus, each.memory), default=None)
        if most is None:
            return "Request less: --max-threads N, --set-resources RULE:NAME=VALUE"
        largest = f"the largest node has {most.cpus:g} cpus, {most.memory} MiB and {most.gpus:g} GPUs"
        return (
            f"Request less, because {largest}: --max-threads {max(1, int(most.cpus))}, --set-resources RULE:NAME=VALUE"
        )


def check_limits(text: str) -> str:
    """Check the option ``--lading-limits``.

    :raises NeedsError: it is not valid
    """
    if text not in LIMITS:
        raise NeedsError(f"--lading-limits {text!r} is not valid; valid: {', '.join(LIMITS)}")
    return text


def executor_config(**hints: Any) -> dict[str, Any]:
    """Return hints as an ``executor_config`` for the engine, without those that are None.

    :raises NeedsError: a hint is not valid
    """
    config = resources(**{name: value for name, value in hints.items() if value is not None})
    try:
        Hints.from_config(config)
    except HintError as error:
        raise NeedsError(for_users(str(error))) from error
    return config


def for_users(said: str) -> str:
    """Translate a message of the engine to the terms of Snakemake, without advice that concerns Airflow only."""
    said = OF_AIRFLOW_ASIDE.sub("", said)
    parts = re.split(r"(?<=[.;]) ", said)
    if (kept := [part for part in parts if not OF_AIRFLOW.search(part)]) != parts:
        said = " ".join(kept).rstrip(";") or said
    for words, ours in WORDS.items():
        said = re.sub(rf"(?<![\w/.-]){words}(?![\w/-])", ours, said)  # but not in paths
    return re.sub(r"\bhint (ppn × threads|\w+)", lambda match: IN_RULES.get(match[1], f"resource {match[1]}"), said)


def needs_of(
    job: Any,
    workflow: Any,
    options: Any,
    last: tuple[str | None, int | None, int | None] | None,
    sites: RunSites | None = None,
    fitted: Sizes = NOTHING_KNOWN,
    size: int | None = None,
    *,
    is_direct: bool = False,
) -> JobNeeds:
    """Return the request of a job.

    :param last: the cause of failure, the memory and the time of its last try; None: this is the first try
    :param sites: the sites where jobs can go; None: unknown, so resources for batch systems only are left out
    :param fitted: what the tries of its rule needed
    :param size: bytes of its inputs; None: unknown
    :param is_direct: whether it is a shell command; otherwise it starts a Snakemake
    :raises NeedsError: the request is not valid, or has no counterpart at its sites
    """
    asked = job.resources
    site = text(asked, "lading_site") or options.site
    batch, place, is_batch, node_cpus = _batch(sites, site)
    seconds = None if (minutes := number(asked, "runtime")) is None else round(60 * minutes)
    gpus, model, gres = batch_resources.graphics(asked, batch, place)
    laid_out = batch_resources.shape(asked, number(asked, "_cores") or 0, gpus, node_cpus)
    memory, disk = _size(asked, "mem"), _size(asked, "disk")
    if (per_cpu := _size(asked, "mem", "_per_cpu")) is not None:
        memory = math.ceil(per_cpu * laid_out.get("cpus", laid_out.get("ppn", 1) * laid_out.get("threads", 1)))
    its_own = {name for name in ("mem", "disk", "runtime") if is_given(job, workflow, name)}
    limited = {"rules": its_own, "all": {"mem", "runtime"}, "none": set()}[options.limits]
    overhead = DIRECT_OVERHEAD if is_direct else OVERHEAD
    cause, had_memory, had_seconds = last or (None, None, None)
    auto = {AUTO_HINTS[name]: None for name in auto_resources(job, workflow, options)}
    hints, decisions = sized(Hints(auto=auto), fitted, None if sites is None else sites.largest(site), size)
    chosen = frozenset(name for name in auto if getattr(fitted, name) is not None)
    if hints.memory is not None and fitted.memory is not None:
        memory, overhead = hints.memory, 0  # measured needs of tries include all of their processes
        if cause == "out_of_memory" and had_memory is not None:
            memory = max(memory, math.ceil(fitted.memory.after(had_memory)))
    elif memory is not None and cause == "out_of_memory" and had_memory is not None:
        memory = max(memory, FACTOR * had_memory - overhead)
    seconds = seconds if hints.time is None else hints.time
    if options.limits != "none":
        limited |= {name for name, hint in AUTO_HINTS.items() if hint in chosen}
    if seconds is not None and cause == "time_limit" and had_seconds is not None:
        seconds = max(seconds, FACTOR * had_seconds)
    is_limited, too_much = memory is not None and "mem" in limited, None
    if sites is not None and sites.here is not None:
        if "cpus" in laid_out:  # can be more for a group of jobs, or for several tasks
            laid_out["cpus"] = min(laid_out["cpus"], sites.here.cpus)
        if memory is not None and memory > sites.here.memory:
            # No other job that requests memory runs at the same time.
            too_much, memory, is_limited = memory, sites.here.memory, False
    found = {} if sites is None else batch_resources.where(asked, batch, place)
    config = executor_config(
        **laid_out,
        memory=memory or None,
        disk=disk if "disk" in its_own else None,
        gpus=f"{model}:{gpus:g}" if model and gpus else gpus or None,
        time=seconds,
        site=site,
        queue=found.get("queue"),
        native={**found.get("native", {}), **gres} or None,
        hurry=options.hurry,
        finish_by=options.finish_by,
    )
    columns: dict[str, Any] = {"memory_limit": memory + overhead if memory is not None and is_limited else None}
    if "runtime" not in limited and not is_batch:  # a batch system gets the requested time, and enforces it itself
        columns["time_limit"] = None
    return JobNeeds(config, columns, overhead, chosen, decisions if chosen else (), too_much)


def in_allocation(needs: JobNeeds, sites: RunSites, dag_id: str, rule: str, past: PastJobs) -> tuple[JobNeeds, str]:
    """Decide whether a job shares an allocation, see :meth:`RunSites.shared`; returns its request and the reason."""
    config, why = sites.shared(needs.config, dag_id, rule, past)
    if not why:
        return needs, ""
    hints = config["lading"]
    # The memory limit is enforced like that of a batch job, to protect other jobs in the allocation. A job without a
    # time is submitted again if the allocation ends before it.
    limit = hints.get("memory", DEFAULT_RESOURCES.memory) + needs.overhead
    chosen = needs.chosen if "time" in hints else needs.chosen | {"time"}
    return needs._replace(config=config, columns={**needs.columns, "memory_limit": limit}, chosen=chosen), why


def auto_resources(job: Any, workflow: Any, options: Any) -> set[str]:
    """Return the resources of a job that Lading chooses once a try of its rule has ended: those its rule does not set.

    If the rule itself sets ``lading_auto``, Lading chooses all of them, and the rule's values count only until a try
    has ended.
    """
    is_own = is_given(job, workflow, AUTO)
    value = number(job.resources, AUTO)
    if not (options.auto if value is None else value):
        return set()
    return {name for name in AUTO_HINTS if is_own or not is_given(job, workflow, name)}


def rule_line(fitted: Sizes) -> str | None:
    """Return the lines of a rule that request what its jobs needed; None: unknown."""
    given = []
    if fitted.memory is not None and fitted.memory.slope and not fitted.by_length:
        need, factor = fitted.memory, math.ceil(fitted.memory.slope * MIB * 1000) / 1000
        given.append(
            f"mem_mib=lambda wildcards, input: max({math.ceil(need.least)}, "
            f"int({factor:g} * input.size / 2**20 + {math.ceil(need.base)}))"
        )
    elif fitted.memory is not None:
        given.append(f"mem_mib={fitted.amount('memory', None)}")
    if fitted.time is not None:
        given.append(f"runtime={math.ceil((fitted.amount('time', None) or 0.0) / 60)}")
    lines = [] if fitted.cpus is None else [f"threads: {math.ceil(fitted.amount('cpus', None) or 1.0)}"]
    return "; ".join(lines + ([f"resources: {', '.join(given)}"] if given else [])) or None


def input_size(job: Any) -> int | None:
    """Return the bytes of a job's inputs; None: unknown, for example for a group, which creates some of its inputs."""
    if job.is_group():
        return None
    try:
        return sum(os.stat(path).st_size for path in job.input)
    except OSError:
        return None


def _batch(sites: RunSites | None, site: str | None) -> tuple[str | None, str, bool, float | None]:
    """Return the batch system of the sites where a job can go; these sites as text; whether all of them have a batch
    system; and the cpus of a node at sites where a job can have several nodes.
    """
    if sites is None:
        return None, "", False, None
    found = sites.open_to(site)
    with_batch = {name: each for name, each in found.items() if each.dialect is not None}
    systems = {str((each.dialect or {}).get("system")) for each in with_batch.values()}
    place = (
        f"site {site!r}"
        if site is not None
        else "each of " + ", ".join(found)
        if len(found) > 1
        else "".join(f"site {name!r}" for name in found)
    )
    if len(systems) > 1:
        return None, f"{place}, of different batch systems,", False, None
    cpus = [
        location.capacity.cpus
        for each in with_batch.values()
        if (each.dialect or {}).get("takes_layouts")
        for location in each.locations
    ]
    return next(iter(systems), None), place, bool(found) and len(with_batch) == len(found), min(cpus, default=None)


def forecast_hints(
    job: Any, workflow: Any, options: Any, sites: RunSites | None = None, fitted: Sizes = NOTHING_KNOWN
) -> dict[str, Any]:
    """Return the hints of an upcoming job, as far as they are known before its inputs exist."""
    try:
        return needs_of(job, workflow, options, None, sites, fitted).config
    except Exception:  # functions of inputs that do not exist yet can raise anything
        return executor_config(hurry=options.hurry, finish_by=options.finish_by)


def is_given(job: Any, workflow: Any, name: str) -> bool:
    """Whether the rule of a job, or a rule of its group, sets a resource itself, other than Snakemake's default."""
    jobs = job.jobs if job.is_group() else [job]
    default = workflow.resource_settings._parsed_default_resources
    return any(
        key in each.rule.resources and not _is_same(each.rule.resources, default, key)
        for each in jobs
        for key in (name, f"{name}_mb", f"{name}_mib", f"{name}_mb_per_cpu")
    )


def _is_same(given: Any, default: Any, key: str) -> bool:
    if default is None or key not in default:
        return False
    rules, defaults = given[key], default[key]
    # A default that depends on inputs has no text, but the rule has the same function object.
    return rules._value is defaults._value or (rules.raw is not None and rules.raw == defaults.raw)


def _size(asked: Any, name: str, per: str = "") -> int | None:
    """Return an amount of memory or disk in MiB, rounded up; None: it is not requested."""
    if (mib := number(asked, f"{name}_mib{per}")) is not None:
        return int(-(-mib // 1))
    if (mb := number(asked, f"{name}_mb{per}")) is not None:
        return int(-(-mb * MB // MIB))
    return None
