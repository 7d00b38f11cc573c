"""SLURM (https://slurm.schedmd.com): the options of sbatch, all commands, and the meaning of refusals (slurm_errno.h).

squeue and sacct print columns, with the name last since it can contain any character. JSON is not used because that of
version 22.05 ignores filters and returns wrong exit codes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any

from lading.hooks.batch.directives import Exclusion, Unsupported, escaped, settings
from lading.hooks.batch.dry_run import DryRun
from lading.hooks.batch.inventory import one_shell
from lading.hooks.batch.memory import amount, dialect, names
from lading.hooks.batch.refusals import Wording, any_of
from lading.hooks.batch.slurm import output
from lading.hooks.batch.slurm.output import by_cluster, cluster_option, joined, split_cluster, together
from lading.hooks.batch.system import BatchJobRequest, BatchSystem, MemoryDialect, NativeJob, Profile
from lading.hooks.ssh.answer import CommandResult

# Settings that are equivalent, or that cannot be given together.
# fmt: off
SYNONYMS = {
    "A": "account", "C": "constraint", "D": "chdir", "J": "job-name", "N": "nodes", "a": "array",
    "c": "cpus-per-task", "d": "dependency", "e": "error", "n": "ntasks", "o": "output", "p": "partition",
    "M": "clusters", "q": "qos", "t": "time", "w": "nodelist", "x": "exclude",
    "mem-per-cpu": "mem", "mem-per-gpu": "mem", "no-requeue": "requeue",
}
# fmt: on
VARIABLES = {
    "ID": "$SLURM_JOB_ID",
    "WORKDIR": "$SLURM_SUBMIT_DIR",
    "SUBMIT_HOST": "$SLURM_SUBMIT_HOST",
    "NAME": "$SLURM_JOB_NAME",
    "ARRAY_INDEX": "$SLURM_ARRAY_TASK_ID",
    "NODELIST": "$SLURM_JOB_NODELIST",
}
ISOLATION: dict[str, str | bool] = {"export": "NONE"}
NO_REQUEUE: dict[str, str | bool] = {"no-requeue": True}
EXCLUSION = Exclusion("--exclude={}")  # sbatch, "--exclude"
WORDING = Wording(
    permanent=any_of(
        r"(?:QOS|Assoc)\w*(?:Wall|CPU|Node|Mem|GRES|Billing|PerJob)\w*",
        "node configuration is not available",
        "no cluster .* known by database",
    ),
    limit=any_of(
        r"(?:QOS|Assoc)\w*(?:Submit|Jobs)\w*",
        "violates accounting/QOS policy",
        "QOS usage threshold",
        "MaxJobCount",
        "unable to create job record",  # message of older versions at MaxJobCount
        "too many jobs",
        "submissions disabled",
        "presently disabled",
        "licenses currently unavailable",
        "reservation not usable now",
        "nodes? (?:are busy|not available)",
        "partition (?:configuration )?not available",
        "partition .*(?:down|inactive|drain)",
    ),
    transient=any_of(
        "unable to contact slurm",
        "slurm temporarily unable",
        "zero bytes were transmitted",
        "munge",
        "standby mode",
        "controller (?:is )?not responding",
        "authentication (?:error|failure|credential)",
        "unpack credential",
        "job credential",
        "rate limit",
        "unexpected message",
        "(?:message|communication|connection) (?:send|receive|connection|shutdown|rejected)",
        "missing socket",
        "socket error",
        "shutting down",
        "incompatible versions",
        "protocol version",
        "configuration (?:source|file)",  # it could not be fetched, or a host name in it could not be resolved
        "unable to resolve",
        "writing script",
        "connect to database",
        "locked by another sibling",
        "slurmdbd",
        "transport endpoint",
        "connect failure",
        "lost, unable to",
        "can't be reached now",
    ),
    memory=any_of("exceeded (?:job )?memory limit"),
    gone=any_of("invalid job id", "already completing or completed", "no active jobs match"),
    # If queried for 7, squeue may list it under a cluster that was not named in the query.
    server=any_of(r"(?<=\d);[\w.-]+"),
    account=any_of(
        "invalid account",
        "unknown association",
        "(?:account|group) not permitted to use this partition",
        "access/permission denied",
        "invalid user id",
    ),
)  # fmt: skip

# The messages are those of slurm_errno.h. sinfo lists the nodes that are down, too.
DRY_RUN = DryRun(
    ["sbatch", "--test-only"],
    noise=re.compile(r"(?:sbatch: (?:error: )?|allocation failure: )+"),
    queue="partition",
    unsure=any_of("node configuration is not available"),
    about={
        "account": any_of("invalid account", "unknown association", "account not permitted"),
        "time": any_of("time limit is invalid", r"(?:QOS|Assoc)\w*Wall"),
        "qos": any_of("invalid qos", "qos not permitted"),
        "constraint": any_of("feature specification"),
        "gres": any_of(r"\bgres\b"),
        "clusters": any_of("no cluster"),
        "reservation": any_of("reservation"),
        "licenses": any_of("license"),
        "partition": any_of(r"\bpartition\b"),
    },
    names={
        "account": one_shell("sacctmgr -n -P show assoc user=$(id -un) format=Account"),
        "qos": one_shell("sacctmgr -n -P show assoc user=$(id -un) format=QOS"),
        "constraint": one_shell("sinfo -h -a -o %f"),
        "gres": one_shell("sinfo -h -a -o %G"),
    },
    of_nodes={"gres"},
)

_CLUSTERS = re.compile(r"[\w.-]+(?:,[\w.-]+)*", re.ASCII)
_ON = " on cluster "
_SUBMITTED = re.compile(rf"(?:Submitted batch job )?(\d+(?:(?:;|{_ON})[\w.-]+)?)")


class SLURM(BatchSystem):
    name = "slurm"
    prefix = "#SBATCH"
    grain = 60
    variables = VARIABLES
    isolation = ISOLATION
    no_requeue = NO_REQUEUE
    leaks = ("SLURM_", "SBATCH_", "SRUN_", "PMI", "PMIX_")
    orders = ("SLURM_EXPORT_ENV", "SLURM_GET_USER_ENV", "SBATCH_", "PMI", "PMIX_")
    synonyms = SYNONYMS
    exclusion = EXCLUSION
    wording = WORDING
    survey = output.SLURM_SURVEY
    dry_run = DRY_RUN
    in_titles = "_=+,"
    granted_nodes = "${SLURM_JOB_NUM_NODES:?}"

    def resource_directives(self, request: BatchJobRequest, profile: Profile) -> list[str]:
        options: dict[str, Any] = {
            "job-name": request.jobname,
            "partition": request.queue,
            "time": request.time and _limit(-(-request.time // self.grain)),
            **_layout(request, profile),
            "exclusive": True if profile.whole_node else None,
            "gres": request.gpus and _gres(request, profile),
            "output": request.stdout,
            "error": request.stderr,
            "array": request.array,
            "comment": request.comment,
        }
        memory = dialect(profile, MemoryDialect(per="cpu" if profile.scatters(request) else "node"))
        if (number := amount(request, memory)) is not None:
            usual = "mem-per-cpu" if memory.per in ("cpu", "slot") else "mem"
            options |= dict.fromkeys(names(memory) or [usual], f"{number}{memory.unit or ''}")
        return [self.native_directive(key, value) for key, value in options.items() if value is not None]

    def native_directive(self, key: str, value: object) -> str:
        short = len(key) == 1
        # Python names cannot have dashes, and no option of sbatch has underscores: mail_type becomes --mail-type.
        option = f"-{key}" if short else f"--{key.replace('_', '-')}"
        return option if value is True else f"{option}{' ' if short else '='}{escaped(str(value))}"

    def submit(self, path: str) -> list[str]:
        return ["sbatch", "--parsable", path]

    def submitted(self, answer: CommandResult) -> str:
        # A site's wrapper of sbatch may drop --parsable.
        return self.wording.submitted(answer, _SUBMITTED).replace(_ON, ";")

    def element(self, id: str, index: int) -> str:
        number, cluster = split_cluster(id)
        return joined(f"{number}_{index}", cluster)

    def clusters(self, directives: Iterable[str]) -> tuple[str, ...]:
        found: tuple[str, ...] = ()
        for directive in directives:
            if self.one_name(settings(directive)[0]) == "clusters":
                names = re.sub(r"--?[A-Za-z]+[= ]?", "", directive, count=1)
                if not _CLUSTERS.fullmatch(names) or "all" in names.split(","):
                    # If the answer of sbatch is lost, the job is looked up in every cluster that can have it.
                    raise Unsupported(
                        f"{directive} does not name the clusters; give their names (sacctmgr list clusters), separated "
                        "by commas"
                    )
                found = tuple(dict.fromkeys(names.lower().split(",")))  # SLURM writes their names in lower case
        return found

    def own_id(self, variable: str, clusters: Sequence[str]) -> str:
        return joined(variable, "$SLURM_CLUSTER_NAME" if clusters else None)

    def status(self, user: str, ids: Sequence[str] = ()) -> list[str]:
        return self._status(user, [_clusters_of(each) for each in by_cluster(ids)] or [[]])

    def lookup(self, user: str, ids: Sequence[str], clusters: Sequence[str] = ()) -> list[str]:
        named = cluster_option([*clusters, *(split_cluster(id)[1] for id in ids)])
        return self._status(user, [[], *([named] if named else [])])

    def _status(self, user: str, clusters: Sequence[Sequence[str]]) -> list[str]:
        """Return the command that lists the jobs of a user.

        :param clusters: for each list, the option that names its clusters
        """
        # By user, since squeue fails for a single unknown ID, but not for two. Without -a, it omits jobs in hidden
        # partitions and those of other clusters of a federation. Without -h, because the column titles prove that
        # squeue has queried the controller, and newer versions print cluster names only together with titles.
        asked = ["-a", "-r", "-t", "all", "-u", user, "-o", output.SQUEUE_FORMAT]
        squeue = ["env", output.TIME_FORMAT, "squeue"]
        return together([[*squeue, *option, *asked] for option in clusters])

    def statuses(self, answer: CommandResult) -> list[NativeJob]:
        if not output.lacks_only_clusters(answer):
            self.wording.check_asked(answer)
        return output.queued(answer)

    def unknown(self, answer: CommandResult, ids: Sequence[str], *, listed: bool) -> Collection[str]:
        return output.wholly_told(answer, ids)

    def lists_all(self, answer: CommandResult, clusters: Sequence[str] = ()) -> bool:
        return output.lists_all(answer, clusters)

    def asked_as(self, answer: CommandResult, ids: Sequence[str]) -> Callable[[str], str]:
        # Where the local list has no name, job 7 of another cluster is not the local job 7.
        return str if output.lists_local(answer) else super().asked_as(answer, ids)

    def cancel(self, ids: Sequence[str]) -> list[str]:
        return output.cancelling(ids)

    def accounting(self, ids: Sequence[str], user: str, since: datetime) -> list[str] | None:
        # Two days of slack: the site's time zone can differ by up to 26 hours, and its clock may be wrong.
        start = (since - timedelta(days=2)).strftime("%Y-%m-%d")
        commands = []
        for same_cluster in by_cluster(ids):
            option = _clusters_of(same_cluster)
            fields = f"Cluster,{output.SACCT_FIELDS}" if option else output.SACCT_FIELDS
            numbers = ",".join(split_cluster(id)[0] for id in same_cluster)
            options = ["-n", "-P", "-S", start, "-u", user, "-j", numbers, "-o", fields]
            commands.append(["sacct", *option, *options])
        return together(commands)

    def accounted(self, answer: CommandResult) -> list[NativeJob]:
        self.wording.check_asked(answer)
        return output.accounted(answer)


def _clusters_of(ids: Iterable[str]) -> list[str]:
    """Return the option that names the clusters of these IDs; empty if no ID has one."""
    return cluster_option(split_cluster(id)[1] for id in ids)


def _gres(request: BatchJobRequest, profile: Profile) -> str:
    """Return the GPUs of each node as ``name[:type]:count``."""
    name = profile.gpu_resource or "gpu"
    if request.gpu_type is not None and ":" in name:
        raise Unsupported(
            f"gpus of type {request.gpu_type}: gpu_resource = {name!r} has a type already; leave the type to "
            f"gpu_types, and set gpu_resource = {name.partition(':')[0]!r}"
        )
    return ":".join(filter(None, (name, request.gpu_type, str(request.gpus))))


def _layout(request: BatchJobRequest, profile: Profile) -> dict[str, int | str | None]:
    if profile.nodes == "ignore":
        processes = None if request.nodes is None and request.ppn is None else request.processes
        return {"ntasks": processes, "cpus-per-task": request.threads}
    nodes: int | str | None = request.nodes
    if request.nodes is not None and request.least_nodes is not None and request.least_nodes < request.nodes:
        nodes = f"{request.least_nodes}-{request.nodes}"
    return {"nodes": nodes, "ntasks-per-node": request.ppn, "cpus-per-task": request.threads}


def _limit(minutes: int) -> str:
    days, rest = divmod(minutes, 24 * 60)
    return f"{days}-{rest // 60:02d}:{rest % 60:02d}:00" if days else f"{rest // 60:02d}:{rest % 60:02d}:00"
