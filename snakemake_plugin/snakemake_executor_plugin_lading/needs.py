"""What a job of Snakemake's asks for, as Lading's hints: its threads and its resources."""

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
from lading.scheduling.insight.auto import sized
from lading.scheduling.insight.right_size import NOTHING_KNOWN, Sizes
from lading.scheduling.matching.ranking import QueueWaits
from lading.scheduling.prediction import History
from lading.scheduling.resources import Resources
from lading.scheduling.site_names import is_named
from snakemake_executor_plugin_lading import batch_resources
from snakemake_executor_plugin_lading.batch_resources import NeedsError, number, text

if TYPE_CHECKING:
    from lading.plugin.published import PublishedSite

__all__ = ["NeedsError", "RunSites", "check_limits", "executor_config", "for_users", "forecast_hints", "needs_of"]

# What a job may use beside what its rule's command does, MiB: the Snakemake that runs it; its shell, and ours.
OVERHEAD, DIRECT_OVERHEAD = 256, 16
MB, MIB = 10**6, 2**20
# By how much the next attempt has more of what the one before had too little, unless its rule asks for more by itself.
FACTOR = 2
LIMITS = ("rules", "all", "none")
# What a job is packed by that says nothing of it.
DEFAULT_RESOURCES = Resources(cpus=1, memory=512)
# What Lading's hints are called here.
IN_RULES = {
    "cpus": "threads", "ppn × threads": "resource tasks × threads", "memory": "resource mem_mb",
    "disk": "resource disk_mb", "gpus": "resource gpu", "site": "resource lading_site", "time": "resource runtime",
    "queue": "resource slurm_partition", "native": "option of the batch system", "hurry": "--lading-hurry",
    "finish_by": "--lading-finish-by",
}  # fmt: skip
# Advice for users of Airflow, in parentheses or as a part of a sentence.
OF_AIRFLOW = re.compile(r"(?<![\w/.-])(Airflow|airflow[ -]lading)(?![\w/-])|\[(lading|core)\]")
OF_AIRFLOW_ASIDE = re.compile(r" \([^()]*(airflow lading|\[lading\])[^()]*\)")
# Words that are Airflow's, and what they mean for Snakemake.
WORDS = {
    "another deployment( of Lading)?": "another workflow",
    "this deployment": "this workflow",
    "task instance": "job",
    "the scheduler": "Snakemake",
    "Dag": "workflow",
    "Dags": "workflows",
}
# Longer jobs are batch jobs however long they wait: one in an allocation that is about to end starts anew, seconds.
LONGEST_SHORT = 600.0
# By so many deviations nine of ten jobs of a rule are shorter.
DEVIATIONS = NormalDist().inv_cdf(0.9)
# The resource of jobs whose memory and runtime Lading chooses, and what that is as hints.
AUTO = "lading_auto"
AUTO_HINTS = {"mem": "memory", "runtime": "time"}


class JobNeeds(NamedTuple):
    """What a job asks for.

    :param config: its hints
    :param columns: those that differ from what these say
    :param overhead: MiB that it may use besides the memory that these say
    :param chosen: the hints that Lading has chosen
    :param decisions: how, one sentence each
    """

    config: dict[str, Any]
    columns: dict[str, Any]
    overhead: int
    chosen: frozenset[str] = frozenset()
    decisions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PastJobs:
    """How long jobs have run and waited, in earlier runs and in this one.

    :param waits: in the queues of batch systems; ``launches``: the same of allocations
    """

    history: History = field(default_factory=History)
    waits: QueueWaits = field(default_factory=QueueWaits)
    launches: QueueWaits = field(default_factory=QueueWaits)

    def length(self, dag_id: str, rule: str, stated: float | None) -> float | None:
        """Seconds that nine of ten jobs of a rule run at most; None: too few have ended, and it states no time.

        :param stated: the time after which they are ended
        """
        levels = (((dag_id, rule), rule),)
        if not self.history.knows(levels):
            return stated
        found = self.history.predict(levels, stated)
        seconds = found.seconds * math.exp(DEVIATIONS * found.spread)
        return seconds if stated is None else min(seconds, stated)


def allocations_of(site: str) -> str:
    """The name of the site that has the allocations of a cluster's short jobs."""
    return f"{site}-allocations"


@dataclass(frozen=True, slots=True)
class RunSites:
    """The sites to which the jobs of a run may go.

    :param known: by name
    :param here: what this machine has for jobs, where there is no other site; None: there is
    """

    known: Mapping[str, PublishedSite] = field(default_factory=dict)
    here: Resources | None = None

    def open_to(self, site: str | None) -> dict[str, PublishedSite]:
        """Those to which a job may go.

        :param site: the one that it names; None: it names none
        """
        if site is None:
            return {name: each for name, each in self.known.items() if each.accept_untargeted}
        return {name: each for name, each in self.known.items() if is_named(name, site)}

    @property
    def with_allocations(self) -> list[str]:
        """The clusters that have allocations for their short jobs."""
        return [name for name in self.known if allocations_of(name) in self.known]

    def shared(self, config: dict[str, Any], dag_id: str, rule: str, past: PastJobs) -> tuple[dict[str, Any], str]:
        """The hints of a job that shares an allocation, and why; those that it has, and nothing: it is a batch job.

        It shares one if three of four jobs like it have waited longer in the queue than nine of ten of its rule run,
        unless it needs a batch job of its own: for GPUs, several processes or nodes, or options that are about one job.

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
        if wait is None:  # most jobs have been in allocations lately
            wait = past.launches.expected(twin, queue, max(nodes, default=hints["cpus"]))
        if seconds is None or wait is None or not seconds < min(wait, LONGEST_SHORT):
            return config, ""
        others = {key: value for key, value in hints.items() if key != "site"}
        why = f"jobs of rule {rule} share allocations of {name}: they take {seconds:.0f} s, and wait {wait:.0f} s alone"
        return executor_config(**others, targets=[twin, name]), why

    def largest(self, site: str | None) -> Resources | None:
        """The most of everything that a machine or node has to which a job may go; None: that is not known."""
        rooms = [each.capacity for found in self.open_to(site).values() for each in found.locations]
        if not rooms:
            return None
        return Resources(max(each.cpus for each in rooms), max(each.memory for each in rooms))

    @property
    def most_threads(self) -> int | None:
        """The most threads of a rule, as ``--cores`` limits them; None: any number, as some site may have them."""
        return None if self.here is None else max(1, math.floor(self.here.cpus))

    def check(self, hints: Hints, dag_id: str) -> None:
        """Refuse what no site can ever give.

        :raises NeedsError: it says what there is, and what to do
        """
        from lading.plugin.hint_checks import check_sites

        try:
            check_sites(hints, self.known, Resources(), dag_id)
        except HintError as error:
            said = for_users(str(error))
            raise NeedsError(f"{said}. {self._advice()}" if "more than" in said else said) from error

    def _advice(self) -> str:
        if self.here is not None:
            return "Run it where there is more (--lading-sites-file), or ask for less: --set-resources RULE:NAME=VALUE"
        rooms = [each.capacity for site in self.known.values() for each in site.locations]
        most = max(rooms, key=lambda each: (each.cpus, each.memory), default=None)
        if most is None:
            return "Ask for less: --max-threads N, --set-resources RULE:NAME=VALUE"
        largest = f"the largest node has {most.cpus:g} cpus, {most.memory} MiB and {most.gpus:g} GPUs"
        return f"Ask for less, as {largest}: --max-threads {max(1, int(most.cpus))}, --set-resources RULE:NAME=VALUE"


def check_limits(text: str) -> str:
    """Whose memory and runtime are limits.

    :raises NeedsError: it is none of what is valid
    """
    if text not in LIMITS:
        raise NeedsError(f"--lading-limits {text!r} is not valid; valid: {', '.join(LIMITS)}")
    return text


def executor_config(**hints: Any) -> dict[str, Any]:
    """Hints as the engine takes them; those that are None are left out.

    :raises NeedsError: one of them is not valid
    """
    config = resources(**{name: value for name, value in hints.items() if value is not None})
    try:
        Hints.from_config(config)
    except HintError as error:
        raise NeedsError(for_users(str(error))) from error
    return config


def for_users(said: str) -> str:
    """What the engine says in the words of a workflow, without what only users of Airflow can do."""
    said = OF_AIRFLOW_ASIDE.sub("", said)
    parts = re.split(r"(?<=[.;]) ", said)
    if (kept := [part for part in parts if not OF_AIRFLOW.search(part)]) != parts:
        said = " ".join(kept).rstrip(";") or said
    for words, ours in WORDS.items():
        said = re.sub(rf"(?<![\w/.-]){words}(?![\w/-])", ours, said)  # not in a path
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
    """What a job asks for.

    :param last: of its last try the cause of the failure, and the memory and the time that it had; None: this is the
        first
    :param sites: to which jobs may go; None: that is not known, and what only batch systems understand is left out
    :param fitted: what the tries of its rule needed
    :param size: bytes of its inputs; None: not known
    :param is_direct: whether it is a shell command; else it starts a Snakemake
    :raises NeedsError: it makes no sense, or has no meaning where it may go
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
        memory, overhead = hints.memory, 0  # what tries needed is what all of their processes needed
        if cause == "out_of_memory" and had_memory is not None:
            memory = max(memory, math.ceil(fitted.memory.after(had_memory)))
    elif memory is not None and cause == "out_of_memory" and had_memory is not None:
        memory = max(memory, FACTOR * had_memory - overhead)
    seconds = seconds if hints.time is None else hints.time
    if options.limits != "none":
        limited |= {name for name, hint in AUTO_HINTS.items() if hint in chosen}
    if seconds is not None and cause == "time_limit" and had_seconds is not None:
        seconds = max(seconds, FACTOR * had_seconds)
    is_limited = memory is not None and "mem" in limited
    if sites is not None and sites.here is not None:
        if "cpus" in laid_out:  # of a group of jobs, or several tasks
            laid_out["cpus"] = min(laid_out["cpus"], sites.here.cpus)
        if memory is not None and memory > sites.here.memory:
            memory, is_limited = sites.here.memory, False  # nothing else that asks for memory runs beside it
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
    if "runtime" not in limited and not is_batch:  # a batch system is told what was asked for, and ends the job
        columns["time_limit"] = None
    return JobNeeds(config, columns, overhead, chosen, decisions if chosen else ())


def in_allocation(needs: JobNeeds, sites: RunSites, dag_id: str, rule: str, past: PastJobs) -> tuple[JobNeeds, str]:
    """What a job asks for that shares an allocation, and why; the same, and nothing: it is a batch job."""
    config, why = sites.shared(needs.config, dag_id, rule, past)
    if not why:
        return needs, ""
    hints = config["lading"]
    # As of a batch job: it takes no memory from others in its allocation. Where that ends before a job without a time,
    # it is submitted again.
    limit = hints.get("memory", DEFAULT_RESOURCES.memory) + needs.overhead
    chosen = needs.chosen if "time" in hints else needs.chosen | {"time"}
    return needs._replace(config=config, columns={**needs.columns, "memory_limit": limit}, chosen=chosen), why


def auto_resources(job: Any, workflow: Any, options: Any) -> set[str]:
    """Which resources of a job Lading chooses once a try of its rule has ended: those that its rule does not give.

    All of them are where the rule itself says ``lading_auto``; what it gives counts until a try has ended.
    """
    is_own = is_given(job, workflow, AUTO)
    value = number(job.resources, AUTO)
    if not (options.auto if value is None else value):
        return set()
    return {name for name in AUTO_HINTS if is_own or not is_given(job, workflow, name)}


def rule_line(fitted: Sizes) -> str | None:
    """What a rule should ask for by what its jobs needed, as its author writes it; None: nothing is known."""
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
    """Bytes of a job's inputs; None: not known, as of a group, some of whose inputs its own jobs make."""
    if job.is_group():
        return None
    try:
        return sum(os.stat(path).st_size for path in job.input)
    except OSError:
        return None


def exceeds_memory(job: Any, here: Resources) -> int | None:
    """The memory that a job asks for, MiB, if that is more than this machine has."""
    memory = _size(job.resources, "mem")
    return memory if memory is not None and memory > here.memory else None


def _batch(sites: RunSites | None, site: str | None) -> tuple[str | None, str, bool, float | None]:
    """The batch system of the sites to which a job may go, these as text, whether all of them have one, and the cpus of
    a node where a job may have several.

    :raises NeedsError: they have different ones, between which what it asks for cannot choose
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
    """What a job that is to come will ask for, as hints, as far as that is known before its inputs are there."""
    try:
        return needs_of(job, workflow, options, None, sites, fitted).config
    except Exception:  # a function of its inputs, which are not there yet, may raise anything
        return executor_config(hurry=options.hurry, finish_by=options.finish_by)


def is_given(job: Any, workflow: Any, name: str) -> bool:
    """Whether the rule of a job, or one of its group, gives a resource itself: it is not Snakemake's default."""
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
    # Of a default that depends on the inputs there is no text, and the rule has the same function.
    return rules._value is defaults._value or (rules.raw is not None and rules.raw == defaults.raw)


def _size(asked: Any, name: str, per: str = "") -> int | None:
    """An amount of memory or disk in MiB, rounded up; None: none is asked for."""
    if (mib := number(asked, f"{name}_mib{per}")) is not None:
        return int(-(-mib // 1))
    if (mb := number(asked, f"{name}_mb{per}")) is not None:
        return int(-(-mb * MB // MIB))
    return None
