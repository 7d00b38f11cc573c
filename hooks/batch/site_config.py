"""The table of a batch site: how to reach it, who can use it, and with which directives.

Some directives are refused at every site because they would give a Dag author more rights than running a job there:
files and environments that the submit command reads with the rights of the submitting account, files that the batch
system's server copies, and commands that run outside the job.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from lading.hooks.batch.directives import ATTRIBUTES, COMMON_RESOURCES, Unsupported, given
from lading.hooks.batch.system import BatchSystem
from lading.hooks.deployment.airflow import AIRFLOW
from lading.hooks.deployment.deployment import Deployment
from lading.hooks.files import accounts
from lading.hooks.files.table_model import Seconds, TableModel, Texts
from lading.hooks.ssh.connect import connect
from lading.hooks.ssh.transport import Transport
from lading.scheduling.matching.admission import OWN, Admission, admitted, listed, refusal
from lading.scheduling.text.printable import shortened

# Refused on every batch system. One that lacks such an option would refuse it itself.
REFUSED: Mapping[str, str] = {
    "@": "it reads options from a file",  # qsub(1) of Grid Engine, "-@ optionfile"
    "export-file": "it reads an environment from a file",  # sbatch, "--export-file"
    "get-user-env": "it runs a login shell when the job is submitted",  # sbatch, "--get-user-env"
    "bbf": "it reads a burst buffer's orders from a file",  # sbatch, "--bbf"
    "stagein": "the batch system's server copies files with it",  # qsub(1B) of PBS and TORQUE, "-W stagein"
    "stageout": "the batch system's server copies files with it",
    "u": "it names another user",  # qsub(1B), "-u user_list"; bsub, "-u mail_user"
    "user-list": "it names another user",  # qsub(1B), "-W User_List=...", which is -u
    "proxy-user": "it names another user",  # qsub(1B) of TORQUE, which is -P
    "E": "it runs a command before the job, outside of it",  # bsub, "-E pre_exec_command"
    "Ep": "it runs a command after the job, outside of it",  # bsub, "-Ep post_exec_command"
    "f": "it copies files between hosts",  # bsub, "-f local_file operator remote_file"; qsub(1B), "-f"
    "prologue": "it runs a command before the job, outside of it",  # qsub(1B) of TORQUE, "-l prologue="
    "epilogue": "it runs a command after the job, outside of it",  # qsub(1B) of TORQUE, "-l epilogue="
}
# Refused on one batch system only; on others the same option is harmless.
REFUSED_OF: Mapping[str, Mapping[str, str]] = {
    "torque": {
        "P": "it names another user",  # qsub(1B), "-P user[:group]": a proxy user
        "T": "it names a prologue and an epilogue, which root runs",  # qsub(1B), "-T script"
        "D": "it names another root directory",  # qsub(1B), "-D path"
    },
    "lsf": {
        "stage": "it runs scripts before and after the job, outside of it",  # bsub, "-stage"
        "data": "the batch system copies files with it",  # bsub, "-data"
        "hostfile": "it reads hosts from a file",  # bsub, "-hostfile"
        # bsub, "-i input_file": copied from where it is submitted, unless the node has it; "-is" always
        "i": "it copies a file of the submitting machine",
        "is": "it copies a file of the submitting machine",
        "L": "it runs a login shell for the job, outside of it",  # bsub, "-L login_shell"
        "rnc": "it runs a command next to the job, outside of it",  # bsub, "-rnc resize_notification_cmd"
    },
    "sge": {
        "xd": "it gives the container of the job options with the rights of root",  # qsub(1), "-xd docker_option"
        "xdv": "it mounts folders into the container of the job with the rights of root",  # qsub(1), "-xdv"
        "xd-run-as-image-user": "it runs the job as another user",  # qsub(1), "-xd_run_as_image_user"
    },
}
# Interval between queries for the states of all tasks, whose cost to the batch system grows with the number of jobs.
SECONDS_BETWEEN_QUESTIONS, SECONDS_BETWEEN_LARGE_QUESTIONS = 5.0, 15.0
# Options of PBS, LSF and Grid Engine whose values contain further names.
_WITH_NAMES = ("l", "W", "R")
_NAME = re.compile(r"[A-Za-z][\w.-]*")
# Options of sbatch that are themselves prefixes of refused ones (getopt_long(3) accepts unambiguous prefixes).
_WHOLE = ("export", "bb")

Directives = Mapping[str, str | bool]


class BatchSiteConfig(TableModel):
    """Settings in the table of a batch site that apply to tasks and job scripts alike."""

    ssh_conn_id: str | None = Field(
        default=None,
        description=(
            "Airflow's SSH connection to the login node. If not set, Lading runs the commands of the batch "
            "system on this machine."
        ),
    )
    control_master: str | None = Field(
        default=None,
        description="The arguments of `ssh`, to be used instead of `ssh_conn_id` for login with two factors. A person "
        "logs in once with `-o ControlMaster=yes`, and Lading shares that connection.",
    )
    login_setup: str = Field(default="", description="Shell lines that run before Lading's commands on the login node.")
    setup: str = Field(
        default="", description="Shell lines (bash) that run before every job, such as `module load` or `export`."
    )
    accounting: Literal["auto", "off"] = Field(
        default="auto",
        description="`auto`: Lading queries the accounting of the batch system, if it has one, to learn how jobs "
        "ended. `off`: Lading does not query it.",
    )
    max_poll_interval: Seconds = Field(
        default=60,
        description="Poll interval while nothing happens. While jobs change, the interval is at most 2 s.",
    )
    lost_after: Seconds = Field(
        default=120,
        description="A job that has not reported how it ended counts as lost after this time, if the batch system does "
        "not know it, or shows it in a state that Lading does not know.",
    )
    cancel_unrunnable_after: Seconds = Field(
        default=900,
        description="Some jobs can never start unless an administrator changes something. If the batch system says so "
        "about a job, Lading cancels it after this time, and the job fails.",
    )
    allowed_native: Texts | None = Field(
        default=None,
        description="A list of the native directives that tasks and job scripts can use, or of patterns of directives. "
        "Default: all. See [trust](trust.md).",
    )
    refused_native: Texts = Field(
        default=(),
        description=(
            "A list of the native directives that tasks and job scripts cannot use, or of patterns of directives."
        ),
    )
    accounts: dict[str, str] = Field(
        default={},
        description='The [accounts](teams.md#accounts) that run the jobs of teams or Dags: `{"team:genomics" = '
        '"hpc_genomics", "dag:etl_*" = "hpc_etl"}`. Each value is an Airflow SSH connection, or a table of '
        'the settings that differ for this account (`{ssh_conn_id = "hpc_etl", work_dir = "/scratch/etl", '
        "max_jobs = 50}`). The first key that matches a Dag applies. Dags that match no key use "
        "`ssh_conn_id` of the site; without `ssh_conn_id`, they cannot run here.",
    )
    run_as: str | None = Field(default=None, exclude=True)

    @field_validator("ssh_conn_id", "control_master", "queue", check_fields=False)
    @classmethod
    def _one_line(cls, value: str | None) -> str | None:
        if value is not None and ("\n" in value or not value.strip()):
            raise ValueError("one line of text is expected")
        return value

    @model_validator(mode="before")
    @classmethod
    def _is_of_one_account(cls, table: Any) -> Any:
        """Refuse a table that still has accounts: valid ones have already been expanded into one table each."""
        given = table.get("accounts") if isinstance(table, Mapping) else None
        if given is None or given == {} or table.get(accounts.RUN_AS) is not None:
            return table
        if not isinstance(given, Mapping):
            raise ValueError(f'accounts = {shortened(given)}: a table is expected, such as {{"team:a" = "hpc_a"}}')
        raise ValueError(f"accounts: {accounts.fault(given, table)}")

    @model_validator(mode="after")
    def _one_way(self) -> BatchSiteConfig:
        if self.ssh_conn_id is not None and self.control_master is not None:
            raise ValueError("ssh_conn_id and control_master are two ways to the login node; keep one")
        return self

    @property
    def min_poll_interval(self) -> float:
        """Seconds between two polls while jobs change."""
        # Jobs change: read the site's folder and query the jobs of job scripts this often.
        return min(2.0, self.max_poll_interval)

    def seconds_after_questions(self, questions: int, jobs: int) -> float:
        """Return for how many seconds the batch system is not queried again.

        :param questions: number of commands in the last query, for states and for accounting
        :param jobs: number of queried jobs
        """
        is_small = jobs <= 1000
        pause = SECONDS_BETWEEN_QUESTIONS if is_small else SECONDS_BETWEEN_LARGE_QUESTIONS
        return questions * min(pause, self.max_poll_interval)

    def transport(self, deployment: Deployment = AIRFLOW) -> Transport:
        return connect(self.ssh_conn_id, self.control_master, self.login_setup, deployment)


class NotAllowed(Unsupported):
    """A site does not accept a Dag or a directive. The message names the rule."""


@dataclass(frozen=True, slots=True)
class SiteRules:
    """Which Dags, teams and native directives a site accepts.

    :param allowed_dags: patterns of Dag IDs (``*``, ``?``, ``[...]``); None: every Dag
    :param allowed_teams: patterns of team names; None: every team, and Dags without a team
    :param accounts: the keys of the table's accounts, with the account of each; empty: one account for all
    :param run_as: the account of this site; empty: that of the table itself
    :param allowed_native: patterns of native directives that tasks and job scripts can use; None: all
    :param refused_native: patterns of native directives that they cannot use
    """

    allowed_dags: tuple[str, ...] | None = None
    allowed_native: tuple[str, ...] | None = None
    refused_native: tuple[str, ...] = ()
    allowed_teams: tuple[str, ...] | None = None
    accounts: tuple[tuple[str, str], ...] = ()
    run_as: str = OWN

    @classmethod
    def from_table(cls, table: Any) -> SiteRules:
        """Read the rules from a site's table, its model, or its published settings."""
        dags, allowed, refused, teams, accounts, run_as = (
            table.get(name) if isinstance(table, Mapping) else getattr(table, name, None)
            for name in ("allowed_dags", "allowed_native", "refused_native", "allowed_teams", "accounts", "run_as")
        )
        pairs = accounts.items() if isinstance(accounts, Mapping) else accounts or ()
        return cls(
            None if dags is None else tuple(dags),
            None if allowed is None else tuple(allowed),
            tuple(refused or ()),
            None if teams is None else tuple(teams),
            tuple((str(key), str(account)) for key, account in pairs),
            run_as or OWN,
        )

    @property
    def admission(self) -> Admission:
        return Admission(self.allowed_dags, self.allowed_teams, self.accounts, self.run_as)

    def check_dag(self, site: str, dag_id: str | None, team: str | None = None) -> None:
        """Check that the site accepts a Dag.

        :param team: team of the Dag; None: it has none
        :raises NotAllowed: it does not
        """
        if not admitted([(site, self.admission)], dag_id, team):
            raise NotAllowed(str(refusal([(site, self.admission)], dag_id, team)))

    def check_native(self, native: Directives, system: BatchSystem) -> None:
        """Check that the site accepts an author's native directives; the value False removes a directive of the site.

        :raises NotAllowed: it does not accept one of them
        """
        for written, value in native.items():
            key = written.lstrip("-")
            if (why := _always_refused(key, value, system)) is not None:
                raise NotAllowed(f"{key} is accepted at no site, because {why}; leave it out")
            if _is_refused(self.refused_native, key, value, system):
                message = f"refused_native = {listed(self.refused_native)}"
                raise NotAllowed(f"{key} is not accepted here: {message}; leave it out")
            allowed = self.allowed_native
            if allowed is not None and not all(_matches(allowed, each, system) for each in _sets(key, value, system)):
                raise NotAllowed(f"{key} is not accepted here: allowed_native = {listed(allowed)}; leave it out")

    def check_script(self, resources: Mapping[str, Any], system: BatchSystem) -> None:
        """Check that the site accepts the native directives among the properties of a job script.

        An empty value only removes the site's own directive, so it is not checked.

        :raises NotAllowed: the site does not accept one of them
        """
        ours = (*COMMON_RESOURCES, *ATTRIBUTES)
        native = {key: value for key, value in resources.items() if key not in ours and given(value)}
        self.check_native(
            {key: value if isinstance(value, bool) else str(value) for key, value in native.items()}, system
        )


def _always_refused(key: str, value: str | bool, system: BatchSystem) -> str | None:
    """Return why a directive is refused at every site, also if it would be read as a refused one; None: it is not."""
    refused = {**REFUSED, **REFUSED_OF.get(system.name, {})}
    options = {each.replace("_", "-") for each in system.options(key)}
    for word, why in refused.items():
        if word in options or (system.name == "slurm" and _begins(key.replace("_", "-"), word)):
            return why
    # PBS ignores the case of attribute names: qsub passes them on, and pbs_server compares them without it.
    names = {name.lower().replace("_", "-") for name in _named(key, value)}
    return next((why for word, why in refused.items() if len(word) > 2 and word in names), None)


def _begins(option: str, word: str) -> bool:
    """Whether sbatch would expand a long option to another one because it is a prefix of it."""
    return 1 < len(option) < len(word) and word.startswith(option) and option not in _WHOLE


def _named(key: str, value: str | bool) -> set[str]:
    """Return the names in a directive, whatever quotes surround them."""
    inside = _NAME.findall(value) if key in _WITH_NAMES and isinstance(value, str) else []
    return {key, *inside}


def _sets(key: str, value: str | bool, system: BatchSystem) -> list[set[str]]:
    """For each thing that a directive sets, return its possible names: ``l mem`` can also be ``l`` or ``mem``."""
    try:
        names = system.settings(key, value)
    except Unsupported:
        return [{*system.options(key)}]
    if len(options := system.options(key)) > 1:  # the key has an argument attached
        return [{*options}]
    found = []
    for name in names:
        option, _, inside = name.rpartition(" ")
        # The native key "name" also becomes "-l name=...", but rules for "l" do not apply to it.
        found.append({key, name, inside, system.one_name(name)} | ({option} if option and option == key else set()))
    return found


def _matches(patterns: Sequence[str], names: Iterable[str], system: BatchSystem) -> bool:
    known = {each for name in names for each in (name, name.replace("_", "-"))}
    known |= set(map(system.one_name, known))
    written = [pattern.lstrip("-") for pattern in patterns]
    written += [system.one_name(pattern) for pattern in written]
    return any(fnmatchcase(name, pattern) for name in known for pattern in written)


def _is_refused(patterns: Sequence[str], key: str, value: str | bool, system: BatchSystem) -> bool:
    names = _named(key, value).union(*_sets(key, value, system))
    if system.name == "slurm" and any(_begins(key.replace("_", "-"), pattern.lstrip("-")) for pattern in patterns):
        return True
    return _matches(patterns, names, system)
