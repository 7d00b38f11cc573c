"""A batch system for tests: three shell scripts in a folder, which run jobs on this machine at once."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lading.hooks.batch.refusals import Wording, any_of
from lading.hooks.batch.system import BatchJobRequest, BatchSystem, NativeJob, Profile
from lading.hooks.ssh.answer import CommandResult
from lading.hooks.ssh.exchange import Exchange
from lading.hooks.ssh.local_transport import ShellTransport

SUBMIT = """\
cd "$TOY" || exit
if [ -s refuse ]; then cat refuse >&2; exit 1; fi
size=$(sed -n 's/^#TOY --array=1-//p' "$1" | cut -d % -f 1)
if [ -s limit ] && [ "$(ls jobs | wc -l)" -ge "$(cat limit)" ]; then
  echo x >>refused; echo "too many jobs: job limit reached" >&2; exit 1
fi
if [ -s most ] && [ "${size:-1}" -gt "$(cat most)" ]; then echo "too many jobs" >&2; exit 1; fi
[ ! -e hang ] || sleep 60
until id=$(( $(ls jobs | wc -l) + 1 )); mkdir jobs/$id 2>/dev/null; do :; done
sed -n 's/^#TOY --name=//p' "$1" > jobs/$id/name
for index in $(seq 1 ${size:-1}); do
  element=${size:+.$index}
  (TOY_ID=$id TOY_INDEX=$index TOY_WORKDIR=$OLDPWD; export TOY_ID TOY_INDEX TOY_WORKDIR
    while [ -e hold ]; do sleep 0.05; done; cd / && exec setsid sh "$1") \
    >jobs/$id/printed$element 2>&1 </dev/null &
  echo $! > jobs/$id/pid$element
done
[ ! -e mute ] || { rm mute; echo "connection lost" >&2; exit 1; }
echo "job $id"
"""
LIST = """\
cd "$TOY" || exit
if [ -e down ]; then echo "cannot connect" >&2; exit 1; fi
echo "ID NAME INDEX"
# A process that has ended lives on as a zombie until init looks, which in a container may take it a second.
lives() { { read -r line </proc/$1/stat; } 2>/dev/null && line=${line##*) } && [ "${line%% *}" != Z ]; }
for each in $(ls jobs); do
  for pid in jobs/$each/pid*; do
    lives $(cat $pid) && echo $each $(cat jobs/$each/name) ${pid##*pid}
  done
done
exit 0
"""
KILL = """\
cd "$TOY" || exit
echo "$*" >> killed
[ ! -e deaf ] || exit 0
for each; do
  id=${each%.*}
  case $each in *.*) pids=jobs/$id/pid.${each#*.} ;; *) pids=$(ls jobs/$id/pid*) ;; esac
  # One that has yet to become the leader of a group is killed alone.
  for pid in $pids; do kill -s KILL -- -$(cat $pid) 2>/dev/null || kill -s KILL $(cat $pid) 2>/dev/null; done
done
true
"""


class Toy(BatchSystem):
    name = "toy"
    prefix = "#TOY"
    variables = {  # noqa: RUF012
        **dict.fromkeys(("ID", "SUBMIT_HOST", "NAME", "NODELIST"), "$TOY_ID"),
        "WORKDIR": "$TOY_WORKDIR",
        "ARRAY_INDEX": "$TOY_INDEX",
    }
    no_requeue = {}  # noqa: RUF012
    leaks = ("TOY",)
    wording = Wording(
        any_of("no such queue"), any_of("too many jobs"), any_of("connection lost"), any_of("no such job")
    )

    def resource_directives(self, request: BatchJobRequest, profile: Profile) -> list[str]:
        queue = [f"--queue={request.queue}"] if request.queue else []
        return [f"--name={request.jobname}", *queue, *([f"--array={request.array}"] if request.array else [])]

    def native_directive(self, key: str, value: str | bool) -> str:
        return f"--{key}={value}"

    def submit(self, path: str) -> list[str]:
        return ["toy-submit", path]

    def submitted(self, answer: CommandResult) -> str:
        for line in answer.lines:
            if answer.status == 0 and line.startswith("job "):
                return line.removeprefix("job ")
        raise self.wording.submit_error(answer)

    def element(self, id: str, index: int) -> str:
        return f"{id}.{index}"

    def status(self, user: str, ids: Sequence[str] = ()) -> list[str]:
        return ["toy-list"]

    def statuses(self, answer: CommandResult) -> list[NativeJob]:
        self.wording.check_asked(answer)
        rows = [line.split() for line in answer.lines if line.strip() and not line.startswith("ID ")]
        return [
            NativeJob(id=row[0], state="running", name=row[1], index=int(row[2][1:]) if row[2:] else None)
            for row in rows
        ]

    def cancel(self, ids: Sequence[str]) -> list[str]:
        return ["toy-kill", *ids]


class ToyCluster(ShellTransport):
    """The way to it, which counts its exchanges.

    :param folder: where its scripts and its jobs are
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.exchanges = 0
        (folder / "jobs").mkdir(parents=True)
        (folder / "bin").mkdir()
        for name, text in (("submit", SUBMIT), ("list", LIST), ("kill", KILL)):
            path = folder / "bin" / f"toy-{name}"
            path.write_text(f"#!/bin/sh\n{text}")
            path.chmod(0o755)
        super().__init__(setup=f"TOY={folder} PATH={folder}/bin:$PATH; export TOY PATH")

    def _converse(self, exchange: Exchange, timeout: float) -> None:
        self.exchanges += 1
        super()._converse(exchange, timeout)

    @property
    def jobs(self) -> int:
        """How many were submitted."""
        return len(list((self.folder / "jobs").iterdir()))

    @property
    def listed(self) -> str:
        """What it lists, without the titles of the columns."""
        return self.run([["toy-list"]])[0].stdout.partition("\n")[2]

    def set(self, name: str, text: str = "") -> None:
        """Let something be the case: ``refuse``, ``mute``, ``down``, ``deaf``, ``hold`` (no job starts), ``most``
        (elements of an array), ``limit`` (jobs).
        """
        (self.folder / name).write_text(text)

    def unset(self, name: str) -> None:
        (self.folder / name).unlink()
