"""The commands under ``airflow lading``. This module is loaded for every ``airflow`` command, so it imports little."""

from __future__ import annotations

import argparse

from airflow.cli.cli_config import (
    ARG_OUTPUT,
    ARG_VERBOSE,
    ARG_YES,
    ActionCommand,
    Arg,
    GroupCommand,
    lazy_load_command,
)

from lading.plugin.offline.options import COMMANDS, Option
from lading.plugin.subcommands import options
from lading.plugin.subcommands.options import count, day, map_index, utf8_name
from lading.scheduling.text.units import parse_time


def arg(option: Option) -> Arg:
    """An option as Airflow takes it."""
    return Arg(option.flags, **option.settings)


ARG_SITE = Arg(("site",), nargs="*", help="The sites to check (default: all)")
ARG_TIMEOUT = Arg(
    ("--timeout",), type=count, help="Seconds that the trial job of a site may take (default: 60, with --launch 600)"
)
ARG_LAUNCH = Arg(
    ("--launch",),
    action="store_true",
    help="Where machines are bought, buy the cheapest one, run a trial job on it, end it, and report the cost",
)
ARG_POLICY = Arg(
    ("--policy",),
    action="store_true",
    help="Only print the least that the account of each of these sites must be allowed (ec2: a policy of IAM)",
)
ARG_STATE = arg(options.STATE)
ARG_RUN = arg(options.RUN_ID)
ARG_LIMIT = arg(options.LIMIT)
ARG_GROUPS = arg(options.GROUPS)
ARG_DAG = Arg(("--dag-id",), type=utf8_name, help="Only jobs of this Dag")
ARG_TEAM = Arg(("--team",), type=utf8_name, help="Only jobs of the Dags of this team of Airflow's")
ARG_BOOTSTRAP_SITE = Arg(("site",), help="The site, of kind ec2")
ARG_LADING = Arg(
    ("--lading",),
    required=True,
    metavar="REQUIREMENT",
    help="What pip installs as Lading: the URL of its wheel, or its path in the image, for no index has it",
)
ARG_INSTANCES_ACTION = Arg(
    ("action",),
    nargs="?",
    choices=("list", "drain", "terminate"),
    default="list",
    help="list (the default); drain: take no more jobs, and end when those there have ended; terminate: end at once, "
    "and the jobs there with it",
)
ARG_ENDED = Arg(("--ended",), action="store_true", help="List those that have ended as well, as long as they are kept")
ARG_INSTANCE = Arg(("instance",), nargs="*", help="What to drain or terminate: names, or ids of EC2 and of batch jobs")
ARG_THE_DAG = Arg(("dag_id",), type=utf8_name, help="The Dag")
ARG_WAKE_RUN = Arg(("run_id",), nargs="?", type=utf8_name, help="One run of it (default: all)")
ARG_GANG = Arg(("--gang",), type=utf8_name, help="Only the gang of this name, or of this task (default: all)")
ARG_EXPLAIN_RUN = Arg(("run_id",), type=utf8_name, help="The run")
ARG_EXPLAIN_TASK = Arg(("task_id",), type=utf8_name, help="The task; that of a task in a group is group.task")
ARG_EXPLAIN_INDEX = Arg(("map_index",), nargs="?", type=map_index, default=-1, help="Which instance of a mapped task")
ARG_HURRY = Arg(
    ("hurry",),
    nargs="?",
    help="What the end of the run is worth: 0 to 100, cheap, balanced or fast (default: what its Dag and sites say)",
)
ARG_FINISH_BY = Arg(
    ("--finish-by",),
    metavar="WHEN",
    help="How long it may take (2h), a time of day in the time zone of the Dag (06:00), or a moment "
    "(2026-11-27T06:00) (default: what its Dag says)",
)
ARG_WITHDRAW = Arg(("--withdraw",), action="store_true", help="Take back what was asked of the run")
ARG_LIFT = Arg(
    ("--lift",), metavar="NAME", type=utf8_name, help="Let this budget not hold until its next period begins"
)
ARG_RESTORE = Arg(("--restore",), metavar="NAME", type=utf8_name, help="Let a budget hold again that was lifted")
ARG_COST_DAG = Arg(("dag_id",), nargs="?", type=utf8_name, help="The Dag (default: all, with --by)")
ARG_BY = Arg(("--by",), choices=("team", "dag", "owner", "site"), help="Who is charged what, instead of a Dag's runs")
ARG_SINCE = Arg(
    ("--from",), dest="since", type=day, help="With --by: from this day on, in UTC (default: this month's first)"
)
ARG_UNTIL = Arg(
    ("--to",), dest="until", type=day, help="With --by: until the beginning of this day, in UTC (default: until now)"
)
ARG_COST_OUTPUT = arg(options.OUTPUT)
ARG_RUNS = arg(options.RUNS)
ARG_ONCE = arg(options.ONCE)
ARG_SECONDS = arg(options.SECONDS)
ARG_COST_RUN = Arg(("run_id",), nargs="?", type=utf8_name, help="One run: its tasks (default: all runs that are known)")


def age(text: str) -> int:
    """Seconds for which something has been left alone; what is younger than an hour may be on its way."""
    try:
        seconds = parse_time(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if seconds < 3600:
        raise argparse.ArgumentTypeError(f"{text!r} is too young, it may be on its way; give an hour or more, as 30d")
    return seconds


ARG_CLEANED_SITE = Arg(("site",), nargs="*", help="The sites to clean (default: all, and this machine)")
ARG_OLDER_THAN = Arg(
    ("--older-than",),
    type=age,
    default="30d",
    help="For how long nothing has changed in what is removed, such as 12h, 30d, 8 weeks (default: 30d)",
)
ARG_DRY_RUN = Arg(("--dry-run",), action="store_true", help="Only list what would be removed")


# The modules of commands that do not have one of their name.
MODULES = {
    "bootstrap": "lading.plugin.subcommands.instances",
    "controller": "lading.plugin.service",
}


def command(name: str, help: str, args: tuple[Arg, ...], description: str | None = None) -> ActionCommand:
    """A command that the function of its name carries out, in the module of its name but for :data:`MODULES`."""
    func = lazy_load_command(f"{MODULES.get(name, f'lading.plugin.subcommands.{name}')}.{name}")
    return ActionCommand(name, help, func, (*args, ARG_VERBOSE), description)


def get_commands() -> list[GroupCommand]:
    """What the provider info offers to Airflow's command line."""
    return [
        GroupCommand(
            name="lading",
            help="Run tasks on the machines that fit them",
            description="Shows and checks what Lading does. The executor is lading.executors.LadingExecutor.",
            subcommands=(
                command(
                    "check",
                    "Validate configuration and store, and try a job on every site",
                    (ARG_SITE, ARG_TIMEOUT, ARG_LAUNCH, ARG_POLICY, ARG_OUTPUT),
                    "Ends with status 1 if anything is wrong, and says what to correct.",
                ),
                command(
                    "jobs",
                    "List jobs, the youngest first",
                    (ARG_STATE, ARG_TEAM, ARG_DAG, ARG_RUN, ARG_LIMIT, ARG_GROUPS, ARG_OUTPUT),
                ),
                command(
                    "explain",
                    "Say step by step where the job of a task goes, and why",
                    (ARG_THE_DAG, ARG_EXPLAIN_RUN, ARG_EXPLAIN_TASK, ARG_EXPLAIN_INDEX),
                    "Bindings and filters, matching, ranking, rules and policy. Of a job that waits for a place: "
                    "with what the sites have now; of any other: the decision, the phases and the reasons that were "
                    "recorded.",
                ),
                command(
                    "wake",
                    "Look for room now for jobs that sleep until their next attempt",
                    (ARG_THE_DAG, ARG_WAKE_RUN, ARG_GANG),
                    "These are gangs, and jobs with the hint attempts. Exits with status 1 if none of the named jobs "
                    "sleeps.",
                ),
                command(
                    "hurry",
                    "Say what the end of a live run is worth, and when it must have ended",
                    (ARG_THE_DAG, ARG_EXPLAIN_RUN, ARG_HURRY, ARG_FINISH_BY, ARG_WITHDRAW),
                    "Replaces what its Dag and sites say, where machines are bought by a forecast. Without HURRY and "
                    "options it prints what the run goes by, and when it is expected to end. Ends with status 1 if no "
                    "such run is live, or a value is not valid.",
                ),
                command(
                    "budgets",
                    "List what budgets have spent, or lift one until its next period",
                    (ARG_LIFT, ARG_RESTORE, ARG_OUTPUT),
                    "Sums are up to half a minute old. Who lifted one is in the list and in Airflow's audit log. Ends "
                    "with status 1 if there is no budget of that name.",
                ),
                command("sites", "List sites and their locations", (ARG_OUTPUT,)),
                command(
                    "bootstrap",
                    "Print user data that makes an environment for jobs from a stock image",
                    (ARG_BOOTSTRAP_SITE, ARG_LADING),
                    "A cloud-config that installs Python, Airflow with its providers and Lading, of the "
                    "versions that are here, where `python` of the site's table says.",
                ),
                command(
                    "instances",
                    "List what was launched and has not ended, or release some of it",
                    (ARG_INSTANCES_ACTION, ARG_INSTANCE, ARG_ENDED, ARG_OUTPUT),
                    "Machines of EC2, and allocations of batch clusters. Machines are also found by their tags, so "
                    "those that the store has lost are listed; without a controller they are terminated directly. Ends "
                    "with status 1 if something could not be asked.",
                ),
                command(
                    "cost",
                    "What the runs of a Dag, or the tasks of a run, took and cost; or who is charged what",
                    (ARG_COST_DAG, ARG_COST_RUN, ARG_RUNS, ARG_BY, ARG_SINCE, ARG_UNTIL, ARG_COST_OUTPUT),
                    "Counts running and finished jobs at their sites' prices, or in cpu-hours if a site has no price. "
                    "usd_idle is a job's part of what machines cost while no job used them, shown once they are "
                    "terminated; of_which is the part of both that went to volumes and public addresses. With --by: "
                    "what finished within a period, in cents that add up to the bills; the rows idle and boot are "
                    "what no job was charged. Exits with status 1 if nothing is recorded.",
                ),
                command(
                    "advice",
                    "What the tasks of a Dag should request, by what their tries used",
                    (ARG_THE_DAG, ARG_COST_OUTPUT),
                    "The same as on the Dag's tab, the largest savings first. wasted is the memory that the last tries "
                    "requested and did not use, in GiB-hours; a try that ran out of memory counts with its whole "
                    "request. wasted_by_line is the same with the line to paste into the Dag. Exits with status 1 if "
                    "no try of the Dag has finished.",
                ),
                command(
                    "top",
                    "Show what runs, what waits and why, until Ctrl-C",
                    (ARG_ONCE, ARG_SECONDS),
                    "Into a pipe or a file it is written once.",
                ),
                command(
                    "clean",
                    "Remove what is left behind at sites and on this machine, by age",
                    (ARG_CLEANED_SITE, ARG_OLDER_THAN, ARG_DRY_RUN, ARG_OUTPUT),
                    "Folders of job scripts, submissions, logs and so on; never what a live job needs. Run it on the "
                    "machine of the controller. Ends with status 1 if a site cannot be asked or something cannot be "
                    "removed.",
                ),
                command(
                    "controller",
                    "Run a controller as a service",
                    (),
                    "Executors start one where none lives; run it as a service to have another program supervise it. "
                    "Of several, one acts.",
                ),
                command(
                    "uninstall",
                    "Drop Lading's tables and remove its state folder",
                    (ARG_YES,),
                    "Asks first. Refuses while a scheduler runs with Lading, a controller or a node agent runs, jobs "
                    "are at work, or something that was launched has not ended. Then uninstall the package: with it "
                    "`airflow db migrate` creates the tables again.",
                ),
                *(
                    ActionCommand(
                        name,
                        offline.text,
                        lazy_load_command("lading.plugin.offline.command.airflow_command"),
                        tuple(map(arg, offline.options)),
                        "Changes nothing. The command `lading` does the same.",
                    )
                    for name, offline in COMMANDS.items()
                ),
            ),
        )
    ]
