"""Shell commands about allocations on a cluster, and parsers of their output. Pure."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lading.hooks.cluster.allocations.layout import AllocationTerms, Claim
from lading.hooks.cluster.jobs.layout import ClusterFolder
from lading.hooks.cluster.jobs.remote_steps import HEADER, folder_trouble, header_lines, owner_mark, parse_fates
from lading.hooks.files.owner import Owner
from lading.hooks.spool import job_files
from lading.hooks.spool.tokens import TOKEN, checked
from lading.hooks.ssh.answer import CommandResult
from lading.hooks.ssh.steps import GetAll, RunCommand

# Folders for envelopes on their way into inboxes. If a controller left them there, no agent got them.
GIVEN, RENEWED = "given-", "renewed-"
# Last line of a complete answer.
END = "."
# The path of a job's log in its envelope.
LOG_PATH = shlex.quote('"log_path": *"[^"]*"')
# The folder of its Dags in its envelope.
DAGS = shlex.quote('"dags": *"[^"]*"')


@dataclass(frozen=True)
class Events(GetAll):
    """Read the events of an allocation; there are none before its agent has started."""

    def text(self, marker: str, timeout: int) -> str:
        return f"if [ -d {shlex.quote(self.folder)} ]; then {super().text(marker, timeout)}; else echo :; fi"


@dataclass(slots=True)
class ListedAllocation:
    """An allocation as found on the cluster.

    :param terms: None: they cannot be read
    :param answer: of the batch system; None: the submission was not accepted, or its outcome is unknown
    :param waiting: jobs that it was given and that have not started
    :param begun: jobs that have started
    :param header: lines of the header of its script
    """

    name: str
    terms: AllocationTerms | None = None
    answer: str | None = None
    waiting: list[str] = field(default_factory=list)
    begun: list[str] = field(default_factory=list)
    header: list[str] = field(default_factory=list)


@dataclass(slots=True)
class EarlierJobs:
    """What an earlier controller has left.

    :param user: name of the user
    :param log_paths: log paths of the jobs that have not started, by token
    :param bundles: hashes of their Dag bundles, by token
    """

    user: str
    log_paths: dict[str, str] = field(default_factory=dict)
    bundles: dict[str, str] = field(default_factory=dict)
    allocations: dict[str, ListedAllocation] = field(default_factory=dict)
    claims: dict[str, Claim] = field(default_factory=dict)


def load(folder: ClusterFolder, owner: Owner | None = None) -> RunCommand:
    """Return a step that creates missing folders and prints their content. It also cancels requests to drain agents.

    :param owner: who is to own the folder; None: any deployment
    """
    root = shlex.quote(folder.root)
    return RunCommand(
        f"umask 077; mkdir -p -- {root} && chmod 700 {root} && cd {root} || exit\n{owner_mark(owner)}mkdir -p "
        f"allocations claims logs incoming || exit\nrm -rf incoming/{GIVEN}* incoming/{RENEWED}*\nfor each in "
        'submissions/*/tasks; do [ -f "$each" ] && echo "it holds batch jobs of single tasks: let them '
        "finish with mode = 'job' first, or give another work_dir\" >&2 && exit 1; done\nprintf "
        '"user\\t%s\\n" "$(id -un)" || exit\nfor each in allocations/*/; do [ -f "$each/terms.json" ] || '
        'continue\n  printf "allocation\\t%s\\n" "$each"; sed "s/^/terms\t/" "$each/terms.json"\n  [ -f '
        '"$each/answer" ] && sed "s/^/answer\t/" "$each/answer"\n  '
        f"{header_lines('$each/script')}\n"
        '  for file in "$each"/spool/inbox/*.json '
        '"$each"/spool/closed/*.json; do\n    [ -f "$file" ] && printf "waits\\t%s\\n" "$file" && { grep -o '
        f'{LOG_PATH} "$file" /dev/null | sed \'s/^/log\t/\'\ngrep -o {DAGS} "$file" /dev/null | sed '
        '\'s/^/dags\t/\'; }; done\n  for file in "$each"/spool/jobs/*/; do [ -d "$file" ] && printf '
        '"begun\\t%s\\n" "$file"; done\n  rm -f "$each/spool/shutdown"\ndone; grep "" claims/* /dev/null | '
        f'sed "s/^/claim\t/"; echo {END}'
    )


def loaded(answer: CommandResult) -> EarlierJobs:
    """Parse the output of :func:`load`.

    :raises TransportError: the folders could not be created, or the answer is truncated
    """
    lines = _whole(answer)
    if not lines or not lines[0].startswith("user\t"):
        raise folder_trouble(answer)
    left = EarlierJobs(lines[0].partition("\t")[2].strip())
    found = ListedAllocation("")
    for line in lines[1:]:
        key, _, value = line.partition("\t")
        if key == "allocation":
            found = ListedAllocation(_last(value))
            if TOKEN.fullmatch(found.name):  # otherwise, no controller has created it
                left.allocations[found.name] = found
        elif key == "terms":
            found.terms = _terms(value)
        elif key == "answer":
            found.answer = value if found.answer is None else f"{found.answer}\n{value}"
        elif key == HEADER:
            found.header.append(value)
        elif key == "waits":
            found.waiting += _tokens(_last(value).removesuffix(".json"))
        elif key == "begun":
            found.begun += _tokens(_last(value))
        elif key == "log":
            path, _, log_path = value.partition(":")
            left.log_paths[_last(path).removesuffix(".json")] = _value("log_path", log_path)
        elif key == "dags":
            path, _, dags = value.partition(":")
            left.bundles[_last(path).removesuffix(".json")] = _last(_value("dags", dags))
        elif key == "claim":
            path, _, claim = value.partition(":")
            left.claims |= {token: Claim.from_line(claim) for token in _tokens(_last(path))}
    return left


def place(names: Sequence[str], folder: ClusterFolder) -> RunCommand:
    """Return a step that moves envelopes into the inboxes of allocations, and prints those that were refused.

    :param names: source folders in ``incoming``, with a sub-folder for each allocation; those that start with
        :data:`RENEWED` hold envelopes that only replace others
    """
    return RunCommand(
        f"cd -- {shlex.quote(folder.root)}/incoming || exit\n"
        f"for batch in {shlex.join(names)}; do for each in $batch/*/; do name=${{each%/}}; name=${{name##*/}}\n"
        "  inbox=../allocations/$name/spool/inbox\n"
        f'  case $batch in {GIVEN}*) [ -d "$inbox" ] && mv -f -- $batch/$name/*.json "$inbox/" 2>/dev/null;;\n'
        "  *) for file in $batch/$name/*.json; do\n"
        '    [ -f "$inbox/${file##*/}" ] && mv -f -- "$file" "$inbox/" 2>/dev/null; done;;\n'
        "  esac\n"
        '  for file in $batch/$name/*.json; do [ -f "$file" ] && printf "refused\\t%s\\n" "$file"; done\n'
        f"done; rm -rf -- $batch; done; echo {END}"
    )


def refused(answer: CommandResult) -> frozenset[str] | None:
    """Return the tokens that were refused; None: unknown."""
    lines = _whole(answer)
    return None if lines is None else frozenset(_last(line).removesuffix(".json") for line in lines)


def take_back(jobs: Mapping[str, str], over: Iterable[str], folder: ClusterFolder) -> RunCommand:
    """Return a step that takes jobs out of inboxes, and prints for each: removed, begun or absent.

    It also removes the claim of an allocation that has not started the job, since no other one could start it then.

    :param jobs: the allocation of each, by token
    :param over: allocations whose agent has exited; jobs that it was about to start are taken back, too
    """
    message = " ".join(f"{checked(name)}/{checked(token)}" for token, name in jobs.items())
    ended = "|".join(checked(name) for name in over) or "-"
    return RunCommand(
        f"cd -- {shlex.quote(folder.root)}/allocations || exit\n"
        f"for each in {message}; do name=${{each%/*}} token=${{each#*/}} spool=${{each%/*}}/spool\n"
        f"case $name in {ended}) more=yes;; *) more=;; esac\n"
        'if rm -- "$spool/inbox/$token.json" || rm -- "$spool/closed/$token.json"; then\n'
        '  if grep -qs "^$name\t" "../claims/$token"; then rm -f -- "../claims/$token"; fi; echo "removed $token"\n'
        'elif [ -n "$more" ] && rm -- "$spool/jobs/$token/workload.json"; then\n'
        '  rm -rf -- "$spool/jobs/$token" "../claims/$token"; echo "removed $token"\n'
        'elif [ -e "$spool/jobs/$token" ]; then echo "begun $token"; else echo "absent $token"; fi 2>/dev/null\n'
        f"done; echo {END}"
    )


def taken_back(answer: CommandResult) -> dict[str, str]:
    """Return ``removed``, ``begun`` or ``absent`` by token; empty if the result is unknown."""
    return parse_fates(_whole(answer) or [])


def read_up(content: bytes | None) -> dict[str, Any] | None:
    """Parse what an agent has written on its start; None: it has not started, or the file is incomplete so far."""
    return job_files.remains(job_files.UpFile, content)


def _whole(answer: CommandResult) -> list[str] | None:
    """Return the lines of an answer before its last one; None: it is truncated."""
    lines = [line for line in answer.lines if line]
    return lines[:-1] if answer.status == 0 and lines[-1:] == [END] else None


def _value(name: str, pair: str) -> str:
    """Return the value of a JSON name-value pair; empty if it is damaged."""
    try:
        found = json.loads(f"{{{pair}}}").get(name, "")
    except ValueError:
        return ""
    return found if isinstance(found, str) else ""


def _tokens(name: str) -> list[str]:
    return [name] if TOKEN.fullmatch(name) else []


def _last(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2]


def _terms(line: str) -> AllocationTerms | None:
    try:
        return AllocationTerms.from_json(line)
    except ValueError:
        return None
