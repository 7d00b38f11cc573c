"""Shell commands on a cluster other than those of its batch system, and parsers of their output. Pure."""

from __future__ import annotations

import logging
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from lading.hooks.cluster.jobs.layout import SPOOL_FOLDERS, ClusterFolder, Task, read_tokens
from lading.hooks.files.owner import Owner
from lading.hooks.spool.server import FOREIGN, OWNER
from lading.hooks.spool.tokens import TOKEN, checked
from lading.hooks.ssh.answer import CommandResult, TransportError
from lading.hooks.ssh.steps import RunCommand

log = logging.getLogger(__name__)

# Exit status of a submission that was not attempted because its files are missing.
NOT_TRIED = 97
# Exit status of a submission that was not attempted because the previous one in the same round was not accepted.
NOT_ITS_TURN = 96
# Keys of the lines that list a cluster's folder, and the files of a submission.
_SUBMISSION, _BEGUN, _TASKS, _ANSWER, _WITHDRAWN = "submission", "begun", "task", "answer", "withdrawn"
HEADER = "header"
_FILES = {_TASKS: "tasks", _ANSWER: "answer", _WITHDRAWN: "withdrawn"}


@dataclass(frozen=True)
class ListedSubmission:
    """A submission as found on the cluster.

    :param answer: of the batch system; None: the submission was not accepted, or its outcome is unknown
    :param header: of its script
    """

    name: str
    tasks: Sequence[Task]
    answer: str | None
    withdrawn: frozenset[str] = field(default_factory=frozenset)
    header: str = ""


def owner_mark(owner: Owner | None) -> str:
    """Return the lines (sh) that mark the current folder as owned by a deployment, and exit if another one owns it.

    The mark is created atomically, even if several controllers create it at once. Other controllers of the same
    deployment recognise it as theirs.

    :param owner: None: the folder is not marked
    """
    if owner is None:
        return ""
    return (
        f"mine={_mine(owner)}\n"
        f'if [ ! -e {OWNER} ]; then mark={OWNER}.$$.$(date +%s); printf \'%s\\n\' "$mine" >"$mark" || exit\n'
        f'  ln "$mark" {OWNER} 2>/dev/null || [ -e {OWNER} ] || mv "$mark" {OWNER} || exit; rm -f "$mark"; fi\n'
        f"{_compared(owner)}"
    )


def look_at_owner(folder: ClusterFolder, owner: Owner) -> RunCommand:
    """Return a step that fails if another deployment owns the folder; it does not mark the folder."""
    root = shlex.quote(folder.root)
    return RunCommand(f"cd {root} 2>/dev/null && [ -e {OWNER} ] || exit 0\nmine={_mine(owner)}\n{_compared(owner)}")


def _mine(owner: Owner) -> str:
    return shlex.quote(" ".join(f"{owner.ids[0]} {owner.name}".split()))


def _compared(owner: Owner) -> str:
    known = "|".join(map(shlex.quote, owner.ids))
    theirs, mine = "${owner#* } (${owner%% *})", "${mine#* } (${mine%% *})"
    message = FOREIGN.format(theirs=theirs, mine=mine, key="a work_dir", file=f"$PWD/{OWNER}")
    return (
        f"IFS= read -r owner <{OWNER} || exit\n"
        f'for each in "${{owner%% *}}" "${{owner#* }}"; do case $each in {known}) owner=;; esac; done\n'
        f'[ -z "$owner" ] || {{ echo "{message}" >&2; exit 1; }}\n'
    )


def load(folder: ClusterFolder, owner: Owner | None = None) -> RunCommand:
    """Return a step that creates missing folders, and prints the user's name and the submissions that it finds.

    :param owner: who is to own the folder; None: any deployment
    """
    names = " ".join(["submissions", "logs", "incoming", *(f"spool/{name}" for name in SPOOL_FOLDERS)])
    root = shlex.quote(folder.root)
    return RunCommand(
        f"umask 077; mkdir -p -- {root} && chmod 700 {root} && cd {root} || exit\n{owner_mark(owner)}mkdir -p "
        f'{names} || exit\nfor each in allocations/*/terms.json; do [ -f "$each" ] && echo "it holds '
        "allocations: let them finish with mode = 'allocation' first, or give another work_dir\" >&2 && exit "
        '1; done\nid -un || exit\nfor each in submissions/*/; do [ -f "$each/tasks" ] || continue\n  printf '
        f'"{_SUBMISSION}\\t%s\\n" "$each"\n'
        + "".join(f"  {_tag_lines(key, f'$each/{file}')}\n" for key, file in _FILES.items())
        + f"  {header_lines('$each/script')}\n"
        + "done; begun=$(ls spool/jobs) || exit\n"
        f"""printf '%s\\n' "$begun" | sed -n 's/./{_BEGUN}\t&/p'; echo ."""
    )


def _tag_lines(key: str, path: str) -> str:
    """Print a file with a key before each line, so that its content, which others may have written, is unambiguous."""
    return f'if [ -f "{path}" ]; then sed "s/^/{key}\t/" "{path}"; echo; fi'


def header_lines(path: str) -> str:
    """Print the header of a script, which has its directives, with a key before each line."""
    return f'sed -n -e "/^#/!q" -e "s/^/{HEADER}\t/p" "{path}" 2>/dev/null'


def folder_trouble(answer: CommandResult) -> TransportError:
    """Return why the folder of the cluster cannot be used; without an answer, the folder is not the problem."""
    return TransportError(answer.message if answer.status is None else f"work_dir cannot be used: {answer.message}")


def loaded(answer: CommandResult) -> tuple[str, list[ListedSubmission], frozenset[str]]:
    """Return the user's name, the submissions, and the tokens of the jobs that have started.

    :raises TransportError: the folders could not be created, or the answer is truncated
    """
    lines = [line for line in answer.lines if line]
    if answer.status != 0 or len(lines) < 2 or lines[-1] != ".":
        raise folder_trouble(answer)
    sections: list[tuple[str, dict[str, list[str]]]] = []
    begun = []
    for line in lines[1:-1]:
        key, _, text = line.partition("\t")
        if key == _SUBMISSION:
            sections.append((text.rstrip("/").rpartition("/")[2], {}))
        elif key == _BEGUN:
            begun.append(text)
        elif key in (*_FILES, HEADER) and sections:
            sections[-1][1].setdefault(key, []).append(text)
    found = []
    for name, section in sections:
        try:
            tasks = read_tokens("\n".join(section.get(_TASKS, ())))
        except ValueError as error:
            log.error("the task list of submission %s cannot be read, so it is left alone: %s", name, error)
            continue
        answered = "\n".join(section[_ANSWER]) if _ANSWER in section else None
        withdrawn, header = frozenset(section.get(_WITHDRAWN, ())), "\n".join(section.get(HEADER, ()))
        found.append(ListedSubmission(name, tasks, answered, withdrawn, header))
    return lines[0].strip(), found, frozenset(begun)


def submit(
    folder: ClusterFolder,
    name: str,
    command: Sequence[str],
    bundles: Iterable[str] = (),
    agent: str | None = None,
    after: str | None = None,
) -> RunCommand:
    """Return a step that submits a script and saves the answer next to it, where it is found after a crash.

    :param bundles: hashes of the Dag bundles of its jobs; if one is missing, nothing is submitted
    :param agent: archive of the node agent, required in the same way; None: the agent is installed
    :param after: the submission that must have been accepted before; None: there is none
    """
    needed = [f"{folder.bundle(each)}/." for each in sorted(set(bundles))] + ([] if agent is None else [agent])
    before = None if after is None else folder.submission(after)
    return submit_in(folder.submission(name), command, needed, f"{folder.root}/incoming/{name}", before)


def submit_in(
    path: str,
    command: Sequence[str],
    needed: Iterable[str] = (),
    unplaced: str | None = None,
    after: str | None = None,
) -> RunCommand:
    """Return a step that submits the script in a folder and saves the answer next to it.

    :param needed: files and folders without which nothing is submitted; the step marks them as recently used
    :param unplaced: folder that remains if :func:`place_envelopes` fails; nothing is submitted while it exists
    :param after: folder whose script must have been accepted before, so that a round ends at the first refusal
    """
    present = "".join(f" && [ -e {shlex.quote(each)} ] && touch -- {shlex.quote(each)}" for each in needed)
    if unplaced is not None:
        present = f" && [ ! -e {shlex.quote(unplaced)} ]{present}"
    turn = "" if after is None else f"[ -e {shlex.quote(after)}/answer ] || exit {NOT_ITS_TURN}\n"
    return RunCommand(
        f"{turn}cd -- {shlex.quote(path)} && [ -f script ]{present} || exit {NOT_TRIED}\n"
        f"{shlex.join(command)} > answer.part; status=$?; cat answer.part\n"
        "if [ $status -eq 0 ]; then mv answer.part answer; fi; exit $status"
    )


def withdraw(folder: ClusterFolder, tokens: Sequence[tuple[str, str]]) -> RunCommand:
    """Return a step that notes that tasks no longer belong to their submission.

    :param tokens: submission and token of each
    """
    lines = [f"echo {checked(token)} >> {shlex.quote(folder.submission(name))}/withdrawn" for name, token in tokens]
    return RunCommand("\n".join(["umask 077", *lines]))


# The inbox of the spool. On their way into it, envelopes are stored in `incoming`, next to the spool.

# The results of taking back a job: its envelope was removed, it has started, or its envelope does not exist.
FATES = "removed", "begun", "absent"


def place_envelopes(root: str, names: Sequence[str]) -> RunCommand:
    """Return a step that moves envelopes into the inbox, except those of jobs that have started: they must not run
    twice.

    Each source folder is removed once all of its envelopes have been moved.

    :param root: the folder with the spool, absolute
    :param names: the source folders in ``incoming``; ``renewed`` folders hold envelopes that replace others
    """
    texts = []
    for name in names:
        renewed = name.startswith("renewed")
        # Envelopes that may be taken away at any moment are checked one by one; new ones are moved many at a time.
        keep, most = ('[ -f "../../spool/inbox/$each" ]', 1) if renewed else ("true", 200)
        texts.append(
            f"(cd incoming/{name} || exit; set --; for each in *.json; do "
            f'if {keep} && [ ! -e "../../spool/jobs/${{each%.json}}" ]; then set -- "$@" "$each"; '
            f'else rm -f -- "$each" || exit; fi; '
            f'if [ $# -ge {most} ]; then mv -f -- "$@" ../../spool/inbox/ || exit; set --; fi; done; '
            f'if [ $# -gt 0 ]; then mv -f -- "$@" ../../spool/inbox/ || exit; fi; cd .. && rmdir {name}) || exit'
        )
    return RunCommand(f"cd -- {shlex.quote(root)} || exit\n" + "\n".join(texts))


def take_envelopes_back(root: str, tokens: Iterable[str]) -> RunCommand:
    """Return a step that takes back jobs that have not started, and prints the result for each: one of FATES."""
    message = " ".join(map(checked, tokens))
    return RunCommand(
        f"cd -- {shlex.quote(root)}/spool || exit\nfor each in {message}; do\n"
        'if rm -- "inbox/$each.json" 2>/dev/null; then echo "removed $each"\n'
        'elif [ -e "jobs/$each" ]; then echo "begun $each"; else echo "absent $each"; fi; done'
    )


def envelopes_taken_back(answer: CommandResult) -> dict[str, str]:
    """Return the result by token: ``removed``, ``begun`` or ``absent``.

    :raises TransportError: it is unknown
    """
    if answer.status != 0:
        raise TransportError(f"jobs could not be withdrawn: {answer.message}")
    return parse_fates(answer.lines)


def parse_fates(lines: Iterable[str]) -> dict[str, str]:
    """Return the result of taking back jobs by token; other lines, for example of a verbose ``rm``, are ignored."""
    pairs = (line.split() for line in lines)
    return {pair[1]: pair[0] for pair in pairs if len(pair) == 2 and pair[0] in FATES and TOKEN.fullmatch(pair[1])}
