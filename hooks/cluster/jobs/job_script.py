"""The script of a submission, and which tasks share one."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace

from lading.hooks.api_tunnel import address
from lading.hooks.api_tunnel.address import OPTION
from lading.hooks.batch import environment
from lading.hooks.batch.directives import settings
from lading.hooks.batch.native import SHELL, over, own_directives, refuse
from lading.hooks.batch.request import Profile, titled
from lading.hooks.batch.site_config import SiteRules
from lading.hooks.batch.system import ArrayRange, BatchJobRequest, BatchSystem
from lading.hooks.cluster.jobs.config import ClusterConfig
from lading.hooks.cluster.jobs.layout import ClusterFolder
from lading.hooks.deployment import current
from lading.hooks.spool import agent_archive
from lading.hooks.spool.spool import Envelope
from lading.scheduling.resources import NODES_VARIABLE, Layout
from lading.scheduling.text.units import format_time

# What stands for the name in a script that is only shown; each submission has one of its own.
SHOWN_NAME = "L00000000000000"
LONGEST_COMMENT = 500
# A batch job lives longer than its task may, so that Lading's own limit comes first and the log is complete, seconds.
TIME_TO_REPORT = 120


@dataclass(frozen=True, slots=True)
class ArrayShape:
    """What tasks have in common that share a job array.

    :param layout: its nodes, processes and cpus
    :param memory: MiB on each node
    :param gpus: whole ones on each node
    :param time: seconds, with what the end of a task takes; None: as many as the queue gives
    :param least: the seconds that its author gives the task; 0: none are given
    :param queue: None: that of the site
    :param native: directives of the scheduler, by key
    :param gpu_type: as the batch system calls it; None: any
    """

    layout: Layout
    memory: int
    gpus: int
    time: int | None
    least: int = 0
    queue: str | None = None
    native: tuple[tuple[str, str | bool], ...] = ()
    gpu_type: str | None = None

    def within(self, longest: int | None, queue: str) -> ArrayShape:
        """The same in no more time than a job of its queue may have.

        What the end of a task takes is left out where it does not fit; the batch system's limit then comes first.

        :param longest: seconds; None: any
        :param queue: whose limit that is, as text
        :raises ValueError: the task itself has more, with both figures
        """
        if longest is None or self.time is None or self.time <= longest:
            return self
        if self.least > longest:
            raise ValueError(
                f"time = {format_time(self.least)}, but a job in {queue} may run for {format_time(longest)} at most; "
                "ask for less time, or name another queue"
            )
        return replace(self, time=longest)


def shape(envelope: Envelope, config: ClusterConfig) -> ArrayShape:
    """What the batch job of a task asks for."""
    asked = envelope.resources
    seconds = envelope.time_limit or config.time_limit
    memory = max(asked.memory, envelope.memory_limit or 0) + config.added_memory
    return ArrayShape(
        envelope.layout or Layout(threads=max(1, math.ceil(asked.cpus))),
        min(memory, max(config.node_memory, asked.memory)),
        math.ceil(asked.gpus),
        seconds + config.kill_grace + TIME_TO_REPORT if seconds else config.time_of_the_rest,
        seconds or 0,
        envelope.queue,
        tuple(sorted(envelope.native.items())),
        gpu_type(envelope.gpu_type, config),
    )


def gpu_type(asked: str | None, config: ClusterConfig) -> str | None:
    """The type of GPU that a batch job asks for, as its batch system calls it; None: any, as where all are alike."""
    return None if asked is None else config.types_of_gpus.get(asked, asked)


def named_queues(config: ClusterConfig, system: BatchSystem) -> list[str]:
    """The queues that a site's table names, in its own key or among the native directives."""
    (own,) = system.resource_directives(BatchJobRequest(queue="x"), Profile())
    setting = _setting(own, system)
    native = [
        str(value)
        for key, value in config.resources.items()
        if not isinstance(value, bool) and _setting(system.native_directive(key, str(value)), system) == setting
    ]
    # Several, where a batch system takes them, have commas or blanks between; behind an @ are hosts or a server.
    named = re.split(r"[,\s]+", config.queue or next(iter(native), ""))
    plain = [name.partition("@")[0] for name in named if name]
    return [] if any(re.search(r"[*?\[\]!|&]", name) for name in plain) else plain


def _setting(directive: str, system: BatchSystem) -> str:
    return system.one_name(settings(directive)[0])


def api_environment(config: ClusterConfig, folder: ClusterFolder, api: str) -> list[str]:
    """The lines of a script that lead tasks to Airflow's API, the site's own lines before them.

    :param api: its URL
    """
    return address.environment(config.setup, api, folder.api_address if config.needs_tunnel(api) else None)


@dataclass(frozen=True, slots=True)
class ScriptWriter:
    """Writes the scripts of a site's submissions; ValueError where the batch system has no option for something.

    :param api: URL of Airflow's execution API
    :param is_trial: whether they look first for what a trial is to find
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
        """The script of a submission.

        :param name: of the submission and its batch job
        :param count: of its tasks; more than one: it is an array
        :param excluded: the nodes on which it should not run
        :param titles: of each task, for people: its rule, the same for all, and which job of that it is; none: it has
            no name for people
        """
        config, folder = self.config, self.folder.submission(name)
        index = f'"{self.system.variables["ARRAY_INDEX"]}"' if count > 1 else "1"
        agent = agent_archive.command(config.python, self.folder.root, "lading.executors.agent.batch_job")
        command = [*agent, self.folder.root, name]
        options = [
            *current.deployment().runner_options(),
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
        """How many nodes a job has got, for a shell."""
        if layout.least_nodes is None or self.system.granted_nodes is None or self.config.profile.nodes is not None:
            return str(layout.nodes)
        return self.system.granted_nodes

    def of_one(self, envelope: Envelope, excluded: Sequence[str] = ()) -> str:
        """The script of a submission of one task, to be shown."""
        titles = [envelope.title] if envelope.title[0] else []
        return self.submission(SHOWN_NAME, 1, shape(envelope, self.config), excluded, titles)

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
        """The script of a batch job, or of an array of ``count`` elements.

        :param folder: in which it lies
        :param output: the file in which it prints, for a shell
        :param last: the lines that run what it is for
        """
        system, config = self.system, self.config
        defaults = {key: value if isinstance(value, bool) else str(value) for key, value in config.resources.items()}
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
            # What a task takes away is the site's, not what Lading needs.
            native={**own_directives(system, array=count > 1), **over(dict(shape.native), defaults, system)},
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
    """What a batch job is for: the rule with the wildcards of each of its elements, as far as there is room."""
    rule, wildcards = titles[0]
    which = [f"{index} {each}" for index, (_, each) in enumerate(titles, 1) if each] if len(titles) > 1 else [wildcards]
    text = f"{rule}: {'; '.join(which)}" if any(which) else rule
    plain = re.sub(r"[^\w .,:;=/+-]+", "_", text, flags=re.ASCII)
    return plain if len(plain) <= LONGEST_COMMENT else f"{plain[:LONGEST_COMMENT]} ..."


# The trial job of `airflow lading check`: what its script does first. Both sides look for what the other has written in
# `work_dir`, and the node asks Airflow's API before it imports Airflow: faults there are reported at once, by its
# own name, and not as a job that does not end in time.

# A file server may show to one machine a moment later what another one has written, seconds.
SECONDS_UNTIL_SEEN = 5


def trial_marker(folder: str) -> list[str]:
    """The lines of a script that end it where the node does not see what the login node has written.

    :param folder: in which the script itself is
    """
    seen = f"[ -f {shlex.quote(folder)}/script ]"
    return [
        f"for each in {' '.join(map(str, range(SECONDS_UNTIL_SEEN)))}; do {seen} && break; sleep 1; done",
        f"{seen} || exit 1",
    ]


def trial_request(config: ClusterConfig) -> list[str]:
    """The lines that end it where the node gets no answer of Airflow's API, after those that say where it is."""
    command = shlex.join([config.python, "-m", "lading.hooks.cluster.checks.early_request"])
    return [f"export {OPTION}=api_url", f"{command} || exit 1"]
