"""One exchange with a site: several steps in one shell script, whose answers are separated by a random marker.

The script reaches ``/bin/sh`` on standard input, whatever the user's login shell is (:data:`COMMAND` means the same to
all of them). So the only data of a step on a command line are the arguments of a command to run. The script is one
function that its last line calls: a truncated script is a syntax error and does nothing.

The output of each step stands between two marks, on standard output and on standard error, so banners, the noise of a
``.bashrc`` and converted line ends do no harm. Contents of files travel as tar in base64: one process for a thousand
files, exact names and bytes, and no SFTP subsystem is needed. The site needs a POSIX shell and utilities, tar, base64
and, to kill commands that hang, timeout.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence

from lading.hooks.ssh.answer import CommandResult, TransportError
from lading.hooks.ssh.steps import RemoteStep, RunCommand

# All shells, including csh and fish, parse this alike. The whole script is read before any of it runs; otherwise bash
# would read it byte by byte.
COMMAND = "exec /bin/sh -c 'eval \"$(cat)\"'"
# The text after the second mark of a step if it is an exit status of a shell.
_STATUS = re.compile(rb"([0-9]{1,3})\r?\n")
# The exit status of timeout(1) if it has killed the command.
TIMED_OUT = 124

FUNCTIONS = """\
lading_mark() { printf '%s\\n' "$1" >&2; printf '%s\\n' "$1"; }
lading_run() {
  lading_limit=$1; shift
  if command -v timeout >/dev/null 2>&1; then timeout -k 5 "$lading_limit" "$@"; else "$@"; fi
}
# Moves the content of folder $1 into folder $2: existing folders are merged, anything else is replaced.
lading_place() (
  from=$1 to=$2
  cd -- "$from" || exit
  set --
  for each in * .[!.]* ..?*; do
    if [ -d "$each" ] && [ ! -L "$each" ] && [ -d "$to/$each" ]; then
      lading_place "$from/$each" "$to/$each" || exit
    elif [ -e "$each" ] || [ -L "$each" ]; then
      set -- "$@" "$each"
    fi
    if [ $# -ge 500 ]; then mv -f -- "$@" "$to/" || exit; set --; fi
  done
  if [ $# -gt 0 ]; then mv -f -- "$@" "$to/"; fi
)
# Unpacks the tar on standard input into folder $1; $2 is its last member, which proves that it is complete.
lading_put() (
  umask 077
  mkdir -p -- "$1" && chmod 700 -- "$1" && cd -- "$1" || exit
  to=$(pwd) stage=$(pwd)/.put-$2
  mkdir -- "$stage" || exit
  (cd -- "$stage" && base64 -d | tar -xomf - && [ -f "$2" ] && rm -f -- "$2" && lading_place "$stage" "$to")
  status=$?
  rm -rf -- "$stage"
  exit $status
)
# Lists the files in the current folder that are larger than $1 bytes, and the heavy ones, of which few are read.
lading_weigh() {
  lading_report=yes
  lading_large=$(find -L . ! -name . -prune -type f -size "+$1c" 2>/dev/null)
  lading_heavy=$(find -L . ! -name . -prune -type f -size +16384c 2>/dev/null)
}
lading_is_in() { case "$lading_line$1$lading_line" in *"$lading_line$2$lading_line"*) return 0;; esac; return 1; }
lading_line='
'
# Prints for each file whether it is present (p), absent (a), unreadable (u), too large (l) or not a file (n), then
# packs the present ones, at most $1 of them.
lading_get() {
  lading_most=$1 lading_few=2; shift
  for each in "$@"; do
    if [ -f "$each" ]; then
      if lading_is_in "$lading_large" "$each"; then lading_leave l; continue; fi
      [ "$lading_most" -gt 0 ] || break
      lading_most=$((lading_most - 1))
      if [ ! -r "$each" ]; then lading_leave u; continue; fi
      if lading_is_in "$lading_heavy" "$each"; then
        [ "$lading_few" -gt 0 ] || break
        lading_few=$((lading_few - 1))
      fi
      printf p
    elif [ -e "$each" ] || [ -L "$each" ]; then lading_leave n
    else printf a
    fi
  done
  echo :
}
lading_leave() {
  printf %s "$1"
  if [ -n "$lading_report" ]; then printf 'lading-left %s %s\\n' "$1" "$each" >&2; fi
}
lading_pack() {
  lading_most=$1 lading_few=2 lading_first=yes; shift
  for each in "$@"; do
    if [ -n "$lading_first" ]; then set --; lading_first=; fi
    if [ -f "$each" ] && ! lading_is_in "$lading_large" "$each"; then
      [ "$lading_most" -gt 0 ] || break
      lading_most=$((lading_most - 1))
      [ -r "$each" ] || continue
      if lading_is_in "$lading_heavy" "$each"; then
        [ "$lading_few" -gt 0 ] || break
        lading_few=$((lading_few - 1))
      fi
      set -- "$@" "$each"
    fi
    if [ $# -ge 500 ]; then tar -chf - "$@"; set --; fi
  done
  if [ $# -gt 0 ]; then tar -chf - "$@"; fi
}
"""


class Exchange:
    """The script for some steps, and the output received so far.

    :param steps: done in this order, each whatever the result of the one before
    :param setup: shell text that goes before them and may set variables, as a site's settings file does
    :param timeout: seconds for commands without a limit of their own
    :param most: the most bytes of output that are accepted
    """

    def __init__(
        self,
        steps: Sequence[RemoteStep],
        *,
        setup: str = "",
        timeout: float = 60,
        most: int = 64 * 1024 * 1024,  # more comes from a runaway command
    ) -> None:
        self.steps = steps
        self.most = most
        self.stdout = bytearray()
        self.stderr = bytearray()
        self._ended: set[int] = set()
        self.marker = secrets.token_hex(16)
        self.script = self._script(setup, max(1, round(timeout))).encode(errors="surrogateescape")

    @property
    def begun(self) -> bool:
        """Whether the site has started the steps, so that any delay is due to a step and not to the connection."""
        return self._mark("begin").encode() in self.stdout

    @property
    def complete(self) -> bool:
        """Whether everything has arrived; later output is not ours."""
        return len(self._ended) == 2

    def receive(self, stdout: bytes = b"", stderr: bytes = b"") -> None:
        """Add received output.

        :raises TransportError: it is too much
        """
        end = self._mark("end").encode()
        for stream, data in ((self.stdout, stdout), (self.stderr, stderr)):
            stream.extend(data)
            if data and stream.find(end, max(0, len(stream) - len(data) - len(end))) >= 0:
                self._ended.add(id(stream))
        if len(self.stdout) + len(self.stderr) > self.most:
            raise TransportError(f"more than {self.most} bytes of output")

    def answers(self, trouble: str) -> list[CommandResult]:
        """Return one answer for each step, as far as they have arrived.

        The standard error of a step without an answer explains why.

        :param trouble: why the exchange was cut short, as text
        """
        return [self._answer(number, step, trouble) for number, step in enumerate(self.steps)]

    def silence(self) -> str:
        """Return what may explain that the shell exited without all answers: the end of its output."""
        lines = bytes(self.stderr[-2000:] or self.stdout[-2000:]).decode(errors="replace").splitlines()
        said = "\n".join(line for line in lines if self.marker not in line).strip()
        return f"{'cut off' if self.begun else 'no answer'}; its last output: {said or 'none'}"

    def _script(self, setup: str, timeout: int) -> str:
        lines = ["lading() {", "CDPATH=", FUNCTIONS]
        if setup:
            # Undo changes of shell options that the lines below depend on.
            lines += ["{", setup, "} </dev/null", "set +e +f +u +C", "unset IFS"]
        lines.append(f"lading_mark {self._mark('begin')}")
        for number, step in enumerate(self.steps):
            lines += [f"lading_mark {self._mark(number)}", step.text(self.marker, timeout)]
            lines.append(f"lading_mark {self._mark(number)}:$?")
        return "\n".join([*lines, f"lading_mark {self._mark('end')}", "}", "lading"])

    def _mark(self, what: object) -> str:
        return f"{self.marker}:{what}"

    def _answer(self, number: int, step: RemoteStep, trouble: str) -> CommandResult:
        status, stdout = self._between(self.stdout, number)
        _, stderr = self._between(self.stderr, number)
        if status is None:
            return CommandResult(None, "", trouble)
        if status == TIMED_OUT and isinstance(step, RunCommand):
            return CommandResult(None, "", f"{_named(step)} was killed: it took too long. {stderr}".strip())
        return CommandResult(status, stdout, stderr)

    def _between(self, stream: bytearray, number: int) -> tuple[int | None, str]:
        """Return the exit status and the output of a step; the status is None until the second mark has arrived."""
        mark = self._mark(number).encode()
        start = stream.find(mark + b"\n"), stream.find(mark + b"\r\n")
        begin = max(start)
        if begin < 0:
            return None, ""
        translated = start[0] < 0
        begin += len(mark) + (2 if translated else 1)
        end = stream.find(mark + b":", begin)
        text = bytes(stream[begin : end if end >= 0 else None])
        if translated:
            text = text.replace(b"\r\n", b"\n")
        status = _STATUS.match(stream, end + len(mark) + 1) if end >= 0 else None
        return int(status[1]) if status else None, text.decode(errors="replace")


def _named(step: RunCommand) -> str:
    return step.command.split("\n")[0] if isinstance(step.command, str) else step.command[0]
