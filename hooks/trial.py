"""The trial job of ``airflow lading check`` on a cluster: what its script does first, and what is told of its end.

Both sides look for what the other has written in ``work_dir``, and the node asks Airflow's API before it imports
Airflow: what can be wrong there is told at once, by its own name, and not as a job that does not end in time.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lading.hooks.api_address import OPTION
from lading.hooks.cluster_config import ClusterConfig
from lading.hooks.early_request import MARK
from lading.scheduling.units import format_time

if TYPE_CHECKING:
    from lading.hooks.cluster_ledger import Tracked

# A file server may show to one machine a moment later what another one has written, seconds.
SECONDS_UNTIL_SEEN = 5
MOST_WORDS = 1000


@dataclass(frozen=True, slots=True)
class Sighting:
    """A batch job of a trial as this side sees it.

    :param id: its native id; None: the batch system has not taken it
    :param output: what it has printed into ``work_dir``; None: no file of it is there
    """

    job: Tracked
    id: str | None
    output: str | None


def marker(folder: str) -> list[str]:
    """The lines of a script that end it where the node does not see what the login node has written.

    :param folder: in which the script itself is
    """
    seen = f"[ -f {shlex.quote(folder)}/script ]"
    return [
        f"for each in {' '.join(map(str, range(SECONDS_UNTIL_SEEN)))}; do {seen} && break; sleep 1; done",
        f"{seen} || exit 1",
    ]


def request(config: ClusterConfig) -> list[str]:
    """The lines that end it where the node gets no answer of Airflow's API, after those that say where it is."""
    command = shlex.join([config.python, "-m", "lading.hooks.early_request"])
    return [f"export {OPTION}=api_url", f"{command} || exit 1"]


def diagnosis(config: ClusterConfig, seen: Sequence[Sighting], words: str | None, timeout: float) -> str:
    """Why the trial jobs have failed, or have not ended.

    :param words: how one has failed; None: the time is over
    :param timeout: seconds that they had
    """
    for each in seen:
        if (no_answer := (each.output or "").partition(MARK)[2]) != "":
            return f"{_name(each)}: {no_answer.strip()[-MOST_WORDS:]}"
        if _has_ended(each) and _ran_silently(each):
            return f"{_state(each)}, and nothing that it writes has come to the login node: {_shared(config)}"
    described = "; ".join(_state(each, words or "") for each in seen) or "the batch system has not taken it"
    if words is not None:
        return f"{words} ({described})"
    told = f"the trial job did not end within {format_time(int(timeout))}: {described}"
    if any(map(_ran_silently, seen)):
        return f"{told}; nothing that it writes has come to the login node: {_shared(config)}"
    return f"{told}; give more time: --timeout {max(600, 2 * int(timeout))}"


def _shared(config: ClusterConfig) -> str:
    return (
        f"its node does not share {config.work_dir} with the login node, or may not use it; give a folder on a file "
        'system of both: work_dir = "/shared/..."'
    )


def _name(each: Sighting) -> str:
    where = f" on {each.job.node}" if each.job.node else ""
    return f"batch job {each.id}{where}" if each.id else "a batch job without an id"


def _has_ended(each: Sighting) -> bool:
    return each.job.native is not None and each.job.native.state == "ended"


def _ran_silently(each: Sighting) -> bool:
    """Whether it has run, nothing that it wrote is here, and the batch system names no other cause."""
    job, native = each.job, each.job.native
    if native is None or native.state == "pending" or each.output is not None:
        return False
    ran = native.state == "running" or job.running_since or job.node or native.exit_code is not None
    return bool(ran) and native.cause in (None, "error")


def _state(each: Sighting, known: str = "") -> str:
    """How it is, with its last words unless they are in what is known already."""
    native = each.job.native
    if native is None:
        state = "is not known to the batch system (any more)" if each.job.gone_since else "was not looked at yet"
    else:
        state = {"pending": "waits in its queue", "running": "is running", "ended": "has ended"}[native.state]
        state += f" with exit code {native.exit_code}" if native.exit_code is not None else ""
        state += f" ({native.reason})" if native.reason else ""
    said = (each.output or "").strip()
    return f"{_name(each)} {state}" + (f", its last words: {said[-MOST_WORDS:]}" if said not in known else "")
