"""Ask a cluster which batch jobs it would refuse, without submitting any."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence

from lading.hooks.batch.dry_run import DryRun, parse_names, without_amount
from lading.hooks.batch.inventory import Inventory
from lading.hooks.batch.refusals import CouldNotAsk, SubmitError
from lading.hooks.batch.system import BatchSystem
from lading.hooks.cluster.jobs import job_script
from lading.hooks.cluster.jobs.config import ClusterConfig
from lading.hooks.cluster.jobs.job_script import ScriptWriter, TimeTooLong, named_clusters
from lading.hooks.site import RequestRefusal
from lading.hooks.spool.spool import Envelope
from lading.hooks.ssh.answer import TransportError
from lading.hooks.ssh.steps import RunCommand
from lading.hooks.ssh.transport import Transport
from lading.scheduling.text.nearest import listed, nearest

# How many batch jobs are asked about, and the seconds for all of them and for each command.
MOST_DRY_RUNS, SECONDS, SECONDS_EACH = 50, 30.0, 10
# The script is in a file, as at submission, because a site's wrapper of the submit command may read it twice.
IN_A_FILE = (
    "umask 077; script=$(mktemp) || exit 126; trap 'rm -f -- \"$script\"' EXIT; trap 'exit 126' TERM; "
    'cat >"$script" || exit 126; {} "$script"'
)


def refusals(
    config: ClusterConfig, system: BatchSystem, transport: Transport, api: str, envelopes: Sequence[Envelope]
) -> list[RequestRefusal | None]:
    """Return why the batch jobs of these tasks would be refused; None: one would be accepted.

    This takes two round trips, and another one if a refusal has to be explained.

    :param api: URL of Airflow's execution API
    :raises TransportError: none is refused for good, and not all of them could be asked about
    """
    assert system.dry_run is not None
    dry_run = system.dry_run
    home = named_clusters({}, config, system)
    inventory = None if home else _inventory(system, transport)
    writer, scripts = ScriptWriter(system, config, api), dict[int, str]()
    found: list[RequestRefusal | None] = [None] * len(envelopes)
    for number, envelope in enumerate(envelopes):
        try:
            shape = job_script.fitted(job_script.shape(envelope, config), config, system, inventory)
            scripts[number] = writer.of_shape(envelope, shape)
        except ValueError as error:
            found[number] = RequestRefusal(str(error), option="time" if isinstance(error, TimeTooLong) else None)
    asked = list(scripts)[:MOST_DRY_RUNS]
    command = IN_A_FILE.format(shlex.join(dry_run.command))
    steps = [RunCommand(command, stdin=scripts[number].encode(), limit=SECONDS_EACH) for number in asked]
    refused, trouble = dict[int, SubmitError](), ""
    if len(asked) < len(scripts):
        trouble = f"it was asked about only {len(asked)} of {len(scripts)} different requests"
    for number, answer in zip(asked, transport.exchange(steps, SECONDS), strict=True):
        try:
            if (refusal := dry_run.refusal(answer, system.wording)) is not None:
                refused[number] = refusal
        except CouldNotAsk as error:
            trouble = error.message
    given = {number: system.options_of_script(scripts[number]) for number in refused}
    names = _valid_names(dry_run, transport, {option for each in given.values() for option in each}, inventory)
    for number, refusal in refused.items():
        # The names are those of the cluster of the login node.
        valid = {} if system.clusters_of_script(scripts[number]) else names
        found[number] = _explained(dry_run, system, refusal, given[number], valid)
    if trouble and not any(each is not None and each.is_final for each in found):
        raise TransportError(trouble)
    return found


def _inventory(system: BatchSystem, transport: Transport) -> Inventory | None:
    """Return the nodes and queues; None: they cannot be listed.

    :raises TransportError: there was no answer
    """
    if system.survey is None:
        return None
    (answer,) = transport.run([RunCommand(system.survey.command, limit=SECONDS_EACH)], SECONDS)
    if answer.status is None:
        raise TransportError(answer.message)
    try:
        return system.survey.inventory(answer)
    except CouldNotAsk:
        return None


def _valid_names(
    dry_run: DryRun, transport: Transport, options: set[str], inventory: Inventory | None
) -> dict[str, list[str]]:
    """Return the valid values of options, as far as they can be listed."""
    commands = {option: command for option, command in sorted(dry_run.names.items()) if option in options}
    steps = [RunCommand(command, limit=SECONDS_EACH) for command in commands.values()]
    answers = zip(commands, transport.exchange(steps, SECONDS), strict=True)
    names = {option: parse_names(answer.stdout) for option, answer in answers if answer.status == 0}
    return names if inventory is None else {dry_run.queue: list(inventory.queues), **names}


def _explained(
    dry_run: DryRun,
    system: BatchSystem,
    refusal: SubmitError,
    given: Mapping[str, str],
    names: Mapping[str, Sequence[str]],
) -> RequestRefusal:
    """Return a refusal with the option that it is about, and the valid values of the option.

    :param given: the options of the script
    :param names: the valid values of options
    """
    odd = {option: name for option in given if (name := _unknown(given[option], names.get(option, ())))}
    option = dry_run.option(refusal.message, given)
    # A message that is neither known nor about an option may only be about dry runs, as of a site's own sbatch.
    is_known = option is not None or refusal.of_account or system.wording.permanent.search(refusal.message) is not None
    is_final = refusal.kind == "permanent" and is_known
    if dry_run.unsure.search(refusal.message):
        option = next((each for each in dry_run.of_nodes if each in odd), None)
        is_final = option is not None
    advice = _advice(odd[option], names[option]) if option in odd else ""
    return RequestRefusal(refusal.message, system.name, is_final, option, given.get(option or ""), advice)


def _unknown(value: str, valid: Sequence[str]) -> str | None:
    """Return the first name in a value that is not valid; None: each of them is, or the valid ones are unknown."""
    named = (without_amount(each) for each in re.split(r"[^\w.:-]+", value))
    return next((each for each in named if each and each not in valid), None) if valid else None


def _advice(name: str, valid: Sequence[str]) -> str:
    few = valid if len(valid) <= 20 else nearest(name, valid, 20, cutoff=0)
    return listed("valid" if len(few) == len(valid) else "similar", name, few)
