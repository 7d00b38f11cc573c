"""The table of a batch site: how it is reached, who may use it, and with which options.

Some directives are refused at every site, since a Dag author would get with them what he does not have by running a job
there: files and environments that the submit command reads with the rights of the account that submits, files that
the batch system's own server copies, and commands that run outside of the job.
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
from lading.hooks.files import accounts
from lading.hooks.files.table_model import Seconds, TableModel, Texts
from lading.hooks.ssh.connect import connect
from lading.hooks.ssh.transport import Transport
from lading.scheduling.matching.admission import OWN, Admission, admitted, listed, refusal
from lading.scheduling.text.printable import shortened

# A system that does not have them would refuse them itself.
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
# What is refused of one batch system; of another it is something harmless.
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
        "rnc": "it runs a command beside the job, outside of it",  # bsub, "-rnc resize_notification_cmd"
    },
    "sge": {
        "xd": "it gives the container of the job options with the rights of root",  # qsub(1), "-xd docker_option"
        "xdv": "it mounts folders into the container of the job with the rights of root",  # qsub(1), "-xdv"
        "xd-run-as-image-user": "it runs the job as another user",  # qsub(1), "-xd_run_as_image_user"
    },
}
# Between two looks at a site whose jobs change: its folder is read, and job scripts ask for their own jobs.
SECONDS_WHILE_JOBS_CHANGE = 2.0
# Between two questions for the states of all tasks there, whose cost to the batch system grows with their number.
SECONDS_BETWEEN_QUESTIONS, SECONDS_BETWEEN_LARGE_QUESTIONS = 5.0, 15.0
# More jobs than these make a question a large one.
MOST_JOBS_OF_A_SMALL_QUESTION = 1000
# Of PBS, LSF and Grid Engine: options whose values have names of their own in them.
_WITH_NAMES = ("l", "W", "R")
_NAME = re.compile(r"[A-Za-z][\w.-]*")
# Options of sbatch that begin like one of those that are refused (getopt_long(3) takes every beginning that is clear).
_WHOLE = ("export", "bb")

Directives = Mapping[str, str | bool]


class BatchSiteConfig(TableModel):
    """What a batch site takes from its table, for tasks and for job scripts."""

    ssh_conn_id: str | None = Field(
        default=None, description="Airflow's SSH connection to the login node; without it commands run on this machine."
    )
    control_master: str | None = Field(
        default=None,
        description="In place of ssh_conn_id, for two-factor login: what one types after `ssh`; a person logs in once "
        "with `-o ControlMaster=yes`.",
    )
    login_setup: str = Field(default="", description="Shell lines before Lading's commands on the login node.")
    setup: str = Field(
        default="", description="Shell lines (bash) before every job, such as `module load` or `export`."
    )
    accounting: Literal["auto", "off"] = Field(
        default="auto",
        description="Whether the site's accounting is asked how jobs have ended, where its system has one.",
    )
    max_poll_interval: Seconds = Field(
        default=60,
        description="Time between questions while nothing happens; while jobs change it is 2 s, or this if it is less.",
    )
    lost_after: Seconds = Field(
        default=120,
        description="How long a job may be unknown to the batch system, or in a state that Lading does not know, and "
        "say nothing, before it counts as lost.",
    )
    cancel_unrunnable_after: Seconds = Field(
        default=900,
        description="If the batch system says that a job can never start, but an administrator could change that: how "
        "long the job waits before it is cancelled and fails.",
    )
    allowed_native: Texts | None = Field(
        default=None,
        description="A list of the native directives (or patterns of them) that tasks and job scripts may have; "
        "without it all. See [trust](trust.md).",
    )
    refused_native: Texts = Field(default=(), description="A list of those that they may not have.")
    accounts: dict[str, str] = Field(
        default={},
        description='The [accounts](teams.md#accounts) as which jobs run there: `{"team:genomics" = "hpc_genomics", '
        '"dag:etl_*" = "hpc_etl"}`, each an Airflow SSH connection, or a table of what is different for it '
        '(`{ssh_conn_id = "hpc_etl", work_dir = "/scratch/etl", max_jobs = 50}`). The first key that fits counts, else '
        "the table's own `ssh_conn_id`; without one such jobs have no place there.",
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
        """A table with accounts that are valid is one for each of them by now."""
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
        """Seconds between two looks while jobs change."""
        return min(SECONDS_WHILE_JOBS_CHANGE, self.max_poll_interval)

    def seconds_after_questions(self, questions: int, jobs: int) -> float:
        """Seconds for which the batch system is asked for no states after it was.

        :param questions: how many commands it was asked by: for the states of jobs, and for those in its accounting
        :param jobs: for how many it was asked
        """
        is_small = jobs <= MOST_JOBS_OF_A_SMALL_QUESTION
        pause = SECONDS_BETWEEN_QUESTIONS if is_small else SECONDS_BETWEEN_LARGE_QUESTIONS
        return questions * min(pause, self.max_poll_interval)

    def transport(self) -> Transport:
        """The way to the login node; nothing is opened yet."""
        return connect(self.ssh_conn_id, self.control_master, self.login_setup)


class NotAllowed(Unsupported):
    """A site does not take a Dag or a directive. The message is the site's own."""


@dataclass(frozen=True, slots=True)
class SiteRules:
    """Whom and what a site takes.

    :param allowed_dags: patterns of Dag ids (``*``, ``?``, ``[...]``); None: every Dag
    :param allowed_teams: likewise of the names of teams; None: every team, and Dags of none
    :param accounts: the keys of the table's accounts, with the account of each; empty: it has one for all
    :param run_as: the account that the site is; empty: that of the table itself
    :param allowed_native: patterns of native directives that tasks and job scripts may have; None: all
    :param refused_native: patterns of those that they may not
    """

    allowed_dags: tuple[str, ...] | None = None
    allowed_native: tuple[str, ...] | None = None
    refused_native: tuple[str, ...] = ()
    allowed_teams: tuple[str, ...] | None = None
    accounts: tuple[tuple[str, str], ...] = ()
    run_as: str = OWN

    @classmethod
    def from_table(cls, table: Any) -> SiteRules:
        """The rules in a site's table, its model, or what is published of it."""
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
        """Whose jobs it takes."""
        return Admission(self.allowed_dags, self.allowed_teams, self.accounts, self.run_as)

    def check_dag(self, site: str, dag_id: str | None, team: str | None = None) -> None:
        """Refuse a Dag that the site does not take.

        :param team: that of the Dag; None: it has none
        :raises NotAllowed: it does not
        """
        if not admitted([(site, self.admission)], dag_id, team):
            raise NotAllowed(str(refusal([(site, self.admission)], dag_id, team)))

    def check_native(self, native: Directives, system: BatchSystem) -> None:
        """Refuse native directives of an author that the site does not take; False takes one of the site away.

        :raises NotAllowed: there is one
        """
        for written, value in native.items():
            key = written.lstrip("-")
            if (why := _always_refused(key, value, system)) is not None:
                raise NotAllowed(f"{key} is accepted at no site, for {why}; leave it out")
            if _is_refused(self.refused_native, key, value, system):
                message = f"refused_native = {listed(self.refused_native)}"
                raise NotAllowed(f"{key} is not accepted here: {message}; leave it out")
            allowed = self.allowed_native
            if allowed is not None and not all(_matches(allowed, each, system) for each in _sets(key, value, system)):
                raise NotAllowed(f"{key} is not accepted here: allowed_native = {listed(allowed)}; leave it out")

    def check_script(self, resources: Mapping[str, Any], system: BatchSystem) -> None:
        """Refuse native directives among the properties that an author gives a job script; one that is empty takes the
        site's own away, and says nothing to the batch system.

        :raises NotAllowed: there is one
        """
        ours = (*COMMON_RESOURCES, *ATTRIBUTES)
        native = {key: value for key, value in resources.items() if key not in ours and given(value)}
        self.check_native(
            {key: value if isinstance(value, bool) else str(value) for key, value in native.items()}, system
        )


def _always_refused(key: str, value: str | bool, system: BatchSystem) -> str | None:
    """Why a directive is refused at every site, as it is one of those, or would be taken for one; None: it is not."""
    refused = {**REFUSED, **REFUSED_OF.get(system.name, {})}
    options = {each.replace("_", "-") for each in system.options(key)}
    for word, why in refused.items():
        if word in options or (system.name == "slurm" and _begins(key.replace("_", "-"), word)):
            return why
    # PBS takes the names of attributes in any case (qsub hands them on, and pbs_server compares without it).
    names = {name.lower().replace("_", "-") for name in _named(key, value)}
    return next((why for word, why in refused.items() if len(word) > 2 and word in names), None)


def _begins(option: str, word: str) -> bool:
    """Whether sbatch would take a long option for another one, of which it is the beginning."""
    return 1 < len(option) < len(word) and word.startswith(option) and option not in _WHOLE


def _named(key: str, value: str | bool) -> set[str]:
    """The names in a directive, whatever quotes are around them."""
    inside = _NAME.findall(value) if key in _WITH_NAMES and isinstance(value, str) else []
    return {key, *inside}


def _sets(key: str, value: str | bool, system: BatchSystem) -> list[set[str]]:
    """For each thing that a directive sets, the names that it may be called by: ``l mem`` is also ``l`` and ``mem``."""
    try:
        names = system.settings(key, value)
    except Unsupported:
        return [{*system.options(key)}]
    if len(options := system.options(key)) > 1:  # an argument is attached to it
        return [{*options}]
    found = []
    for name in names:
        option, _, inside = name.rpartition(" ")
        # "-l name=..." that was given as "name" is not known as l.
        found.append({key, name, inside, system.one_name(name)} | ({option} if option and option == key else set()))
    return found


def _matches(patterns: Sequence[str], names: Iterable[str], system: BatchSystem) -> bool:
    """Whether one of the names, or what is the same with the batch system, matches a pattern."""
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
