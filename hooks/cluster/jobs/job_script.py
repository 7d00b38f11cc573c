"""Write the script of a submission, and determine which tasks can share one."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass, replace

from lading.hooks.api_tunnel import address
from lading.hooks.api_tunnel.address import OPTION
from lading.hooks.batch import environment
from lading.hooks.batch.directives import settings
from lading.hooks.batch.inventory import Inventory
from lading.hooks.batch.native import SHELL, Directives, over, own_directives, refuse
from lading.hooks.batch.request import Profile, titled
from lading.hooks.batch.site_config import SiteRules
from lading.hooks.batch.system import ArrayRange, BatchJobRequest, BatchSystem
from lading.hooks.cluster.jobs.config import ClusterConfig
from lading.hooks.cluster.jobs.layout import ClusterFolder
from lading.hooks.spool import agent_archive
from lading.hooks.spool.spool import Envelope
from lading.scheduling.model.location import has_other_limits
from lading.scheduling.model.resources import NODES_VARIABLE, Layout, Resources
from lading.scheduling.text.units import format_time

# Placeholder name in a script that is only shown; each real submission has a unique name.
SHOWN_NAME = "L00000000000000"
# Seconds by which a batch job outlives the limit of its task, so that Lading enforces the limit and the log is
# complete.
TIME_TO_REPORT = 120


class TimeTooLong(ValueError):
    """A task needs more time than a job in its queue can have."""


@dataclass(frozen=True, slots=True)
class ArrayShape:
    """The properties shared by all tasks of a job array.

    :param layout: nodes, processes and cpus
    :param memory: MiB on each node
    :param gpus: whole GPUs on each node
    :param time: seconds, including the time to end a task; None: the limit of the queue
    :param least: time limit that the author gives the task, in seconds; 0: none
    :param queue: None: the site's queue
    :param native: native directives by key
    :param gpu_type: in the batch system's notation; None: any
    :param runner: the module that preloads and runs their commands; empty: none
    """

    layout: Layout
    memory: int
    gpus: int
    time: int | None
    least: int = 0
    queue: str | None = None
    native: tuple[tuple[str, str | bool], ...] = ()
    gpu_type: str | None = None
    runner: str = ""

    def within(self, longest: int | None, queue: str) -> ArrayShape:
        """Return the same shape with a time that fits into its queue.

        If necessary, the time to end a task is dropped; the batch system then enforces the limit first.

        :param longest: seconds; None: unlimited
        :param queue: name of the queue for messages
        :raises TimeTooLong: the task's own limit is longer; the message has both figures
        """
        if longest is None or self.time is None or self.time <= longest:
            return self
        if self.least > longest:
            raise TimeTooLong(
                f"time = {format_time(self.least)}, but a job in {queue} can run for at most "
                f"{format_time(longest)}; request less time, or name another queue"
            )
        return replace(self, time=longest)


def whole(asked: Resources) -> Resources:
    """Return a request in whole cores and GPUs, the smallest units that a batch system assigns."""
    return replace(asked, cpus=float(max(1, math.ceil(asked.cpus))), gpus=float(math.ceil(asked.gpus)))


def shape(envelope: Envelope, config: ClusterConfig) -> ArrayShape:
    asked = whole(envelope.resources)
    seconds = envelope.time_limit or config.time_limit
    memory = max(asked.memory, envelope.memory_limit or 0) + config.added_memory
    return ArrayShape(
        envelope.layout or Layout(threads=int(asked.cpus)),
        min(memory, max(config.node_memory, asked.memory)),
        int(asked.gpus),
        seconds + config.kill_grace + TIME_TO_REPORT if seconds else config.time_of_the_rest,
        seconds or 0,
        envelope.queue,
        tuple(sorted(envelope.native.items())),
        gpu_type(envelope.gpu_type, config),
        envelope.runner,
    )


def fitted(shape: ArrayShape, config: ClusterConfig, system: BatchSystem, inventory: Inventory | None) -> ArrayShape:
    """Return a shape whose time fits into its queue, if the limit of that is known.

    :param inventory: what the batch system last listed; None: unknown
    :raises TimeTooLong: the task itself needs more time
    """
    queue = shape.queue or ",".join(named_queues(config, system))
    name = f"queue {queue!r}" if queue else "the default queue"
    return shape.within(longest(queue, dict(shape.native), config, inventory), name)


def longest(queue: str, native: Collection[str], config: ClusterConfig, inventory: Inventory | None) -> int | None:
    """Return the maximum run time of a job in seconds; None: unlimited or unknown.

    :param queue: empty: the default queue
    :param native: the keys of the native directives of its task
    """
    others = has_other_limits((*native, *config.resources))
    return None if inventory is None or others else inventory.longest_in(queue)


def gpu_type(asked: str | None, config: ClusterConfig) -> str | None:
    """Return a requested type of GPU in the batch system's notation; None: any type, as where all are equal."""
    return None if asked is None else config.types_of_gpus.get(asked, asked)


def native_directives(asked: Directives, config: ClusterConfig, system: BatchSystem) -> dict[str, str | bool]:
    """Return the native directives of a task together with those of its site that it does not replace."""
    defaults = {key: value if isinstance(value, bool) else str(value) for key, value in config.resources.items()}
    return over(asked, defaults, system)


def named_clusters(asked: Directives, config: ClusterConfig, system: BatchSystem) -> tuple[str, ...]:
    """Return the clusters that these directives name, see :meth:`BatchSystem.clusters`.

    :param asked: native directives of a task
    :raises ValueError: the names are not valid
    """
    return system.native_clusters(native_directives(asked, config, system))


def named_queues(config: ClusterConfig, system: BatchSystem) -> list[str]:
    """Return the queues that a site's table names, in its ``queue`` or among its native directives."""
    (own,) = system.resource_directives(BatchJobRequest(queue="x"), Profile())
    setting = _setting(own, system)
    native = [
        str(value)
        for key, value in config.resources.items()
        if not isinstance(value, bool) and _setting(system.native_directive(key, str(value)), system) == setting
    ]
    # Some batch systems accept several, separated by commas or blanks; an @ is followed by hosts or a server.
    named = re.split(r"[,\s]+", config.queue or next(iter(native), ""))
    plain = [name.partition("@")[0] for name in named if name]
    return [] if any(re.search(r"[*?\[\]!|&]", name) for name in plain) else plain


def _setting(directive: str, system: BatchSystem) -> str:
    return system.one_name(settings(directive)[0])


def api_environment(config: ClusterConfig, folder: ClusterFolder, api: str) -> list[str]:
    """Return the lines of a script that tell tasks how to reach Airflow's API, preceded by the site's own setup.

    :param api: URL of the API
    """
    file = folder.api_address if config.needs_tunnel(api) else None
    return address.environment(config.setup, api, file, config.deployment.heartbeat_timeout())


@dataclass(frozen=True, slots=True)
class ScriptWriter:
    """Writes the scripts of a site's submissions. Its methods raise ValueError if the batch system lacks an option.

    :param api: URL of Airflow's execution API
    :param is_trial: whether the scripts of a trial job start with checks
    """

    system: BatchSystem
    config: ClusterConfig
    api: str
    is_trial: bool = False

    @property
    def folder(self) -> ClusterFolder:
        return ClusterFolder(self.config.work_dir)

    def submission(
        self,
        name: str,
        count: int,
        shape: ArrayShape,
        excluded: Sequence[str] = (),
        titles: Sequence[tuple[str, str]] = (),
    ) -> str:
        """Return the script of a submission.

        :param name: of the submission and its batch job
        :param count: number of its tasks; an array if there are several
        :param excluded: nodes on which it must not run
        :param titles: for people, for each task: its rule, equal for all, and the job of that rule; empty: no titles
        """
        config, folder = self.config, self.folder.submission(name)
        index = f'"{self.system.variables["ARRAY_INDEX"]}"' if count > 1 else "1"
        module = "lading.executors.agent.batch_job"
        agent = agent_archive.command(
            config.deployment, config.python, self.folder.root, module, without_site=not shape.runner
        )
        command = [*agent, self.folder.root, name]
        options = [
            *config.deployment.runner_options(),
            "--keep-failed",
            str(config.keep_failed_scratch),
            *(["--scratch", config.scratch] if config.scratch else ()),
        ]
        last = [
            f"export OMP_NUM_THREADS={shape.layout.threads}",
            f"export {NODES_VARIABLE}={self._granted(shape.layout)}",
            f"exec {shlex.join(command)} {index} --kill-grace {config.kill_grace} {shlex.join(options)}",
        ]
        output = f"{shlex.quote(folder)}/output.{index}"
        return self.script(name, count, shape, folder, output, last, excluded, titles)

    def _granted(self, layout: Layout) -> str:
        """Return the number of nodes that a job got, as a shell expression."""
        if layout.least_nodes is None or self.system.granted_nodes is None or self.config.profile.nodes is not None:
            return str(layout.nodes)
        return self.system.granted_nodes

    def of_one(self, envelope: Envelope, excluded: Sequence[str] = ()) -> str:
        """Return the script of a submission of one task, for display."""
        return self.of_shape(envelope, shape(envelope, self.config), excluded)

    def of_shape(self, envelope: Envelope, shape: ArrayShape, excluded: Sequence[str] = ()) -> str:
        """Return the script of a submission of one task that has this shape, which is not submitted."""
        titles = [envelope.title] if envelope.title[0] else []
        return self.submission(SHOWN_NAME, 1, shape, excluded, titles)

    def script(
        self,
        name: str,
        count: int,
        shape: ArrayShape,
        folder: str,
        output: str,
        last: Iterable[str],
        excluded: Sequence[str] = (),
        titles: Sequence[tuple[str, str]] = (),
    ) -> str:
        """Return the script of a batch job, or of an array of ``count`` elements.

        :param folder: that contains the script
        :param output: the output file, as a shell expression
        :param last: the lines that run the payload
        """
        system, config = self.system, self.config
        refuse(dict(shape.native), system, config.profile, SiteRules.from_table(config))
        request = BatchJobRequest(
            jobname=name if not titles or system.in_titles is None else titled(name, _title(titles), system.in_titles),
            comment=_comment(titles) if titles else None,
            queue=shape.queue or config.queue,
            time=shape.time,
            **asdict(shape.layout),
            mem=shape.memory if system.name != "sge" or config.memory else None,
            gpus=shape.gpus or None,
            gpu_type=shape.gpu_type if shape.gpus else None,
            stdout="/dev/null",
            stderr="/dev/null",
            # A task can remove the native directives of its site, but not those that Lading needs.
            native={
                **own_directives(system, array=count > 1),
                **native_directives(dict(shape.native), config, system),
            },
            array=ArrayRange(f"1-{count}") if count > 1 else None,
            excluded_nodes=excluded,
        )
        lines = [
            *system.header(request, config.profile, SHELL),
            "umask 077",
            *(trial_marker(folder) if self.is_trial else ()),
            f"exec >>{output} 2>&1 </dev/null",
            "cd /",
            *environment.note(system, several=shape.layout.processes > 1),
            *api_environment(config, self.folder, self.api),
            *(trial_request(config) if self.is_trial else ()),
            *last,
        ]
        text = "\n".join([*lines, ""])
        system.refuse_script(text)
        return text


def _title(titles: Sequence[tuple[str, str]]) -> str:
    rule, wildcards = titles[0]
    return f"{rule}.{wildcards}" if len(titles) == 1 and wildcards else rule


def _comment(titles: Sequence[tuple[str, str]]) -> str:
    """Return the comment of a batch job: the rule and the wildcards of each element, truncated if it is too long."""
    rule, wildcards = titles[0]
    which = [f"{index} {each}" for index, (_, each) in enumerate(titles, 1) if each] if len(titles) > 1 else [wildcards]
    text = f"{rule}: {'; '.join(which)}" if any(which) else rule
    plain = re.sub(r"[^\w .,:;=/+-]+", "_", text, flags=re.ASCII)
    return plain if len(plain) <= 500 else f"{plain[:500]} ..."


# The trial job of `airflow lading check` starts with checks: both sides look for what the other has written in
# `work_dir`, and the node calls Airflow's API before it imports Airflow. This reports faults at once and by name,
# instead of as a job that does not end in time.


def trial_marker(folder: str) -> list[str]:
    """Return the lines that exit a script if the node does not see what the login node has written.

    :param folder: that contains the script
    """
    seen = f"[ -f {shlex.quote(folder)}/script ]"
    # A file server shows one host what another has written within a few seconds.
    return [
        f"for each in 0 1 2 3 4; do {seen} && break; sleep 1; done",
        f"{seen} || exit 1",
    ]


def trial_request(config: ClusterConfig) -> list[str]:
    """Return the lines that exit a script if Airflow's API does not answer the node.

    The lines that set the API's address must come before them.
    """
    command = shlex.join([config.python, "-m", "lading.hooks.cluster.checks.early_request"])
    return [f"export {OPTION}=api_url", f"{command} || exit 1"]
