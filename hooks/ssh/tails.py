"""Parts of many files at a site, such as what logs have grown by: one step of an exchange. Pure."""

from __future__ import annotations

import base64
import binascii
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from lading.hooks.ssh.answer import CommandResult, TransportError
from lading.hooks.ssh.steps import RemoteStep

# Tells of each file, named by pairs of an offset and a path, whether it is there (=) or not (-), and what is in it
# beyond the offset, $1 bytes at most. One process finds all that have grown: most have not, and a look that started
# three for each file would keep a login node busy.
PARTS = """\
lading_sizes() {
  lading_left=$#
  while [ "$lading_left" -gt 0 ]; do
    if [ -f "$2" ]; then set -- "$@" "$2"; fi
    shift 2
    lading_left=$((lading_left - 2))
  done
  if [ $# -gt 0 ]; then wc -c -- "$@" 2>/dev/null; fi
}
lading_parts() {
  lading_most=$1; shift
  lading_sizes "$@" | {
    name=
    while [ $# -gt 0 ]; do
      if [ -z "$name" ]; then read -r size name || name=; fi
      if [ "$name" != "$2" ]; then echo -
      else
        echo =; name=
        if [ "$size" -eq 0 ] || [ "$size" -le "$1" ]; then :
        elif [ "$1" -lt 0 ]; then tail -c "$1" -- "$2" | base64
        elif [ "$1" -eq 0 ] && [ "$size" -le "$lading_most" ]; then base64 < "$2"
        else tail -c "+$(($1 + 1))" -- "$2" | head -c "$lading_most" | base64
        fi
      fi
      shift 2
    done
  }
}
"""
# Files in one of those calls: a shell copies all its arguments whenever one is added.
CHUNK = 100


@dataclass(frozen=True)
class FilePart:
    """A part of a file.

    :param path: absolute
    :param offset: bytes to leave out at its beginning; negative: only so many at its end
    """

    path: str
    offset: int = 0


@dataclass(frozen=True)
class Parts(RemoteStep):
    """Read parts of many files.

    :param most: bytes of each
    """

    parts: Sequence[FilePart]
    most: int = 2**18

    def text(self, marker: str, timeout: int) -> str:
        words = [f"{part.offset} {shlex.quote(part.path)}" for part in self.parts]
        chunks = [" ".join(words[start : start + CHUNK]) for start in range(0, len(words), CHUNK)]
        return "(" + "\n".join([PARTS, *(f"lading_parts {self.most} {chunk}" for chunk in chunks), ":)"])

    def contents(self, answer: CommandResult) -> list[bytes | None]:
        """What was read of each; None: there is no such file.

        :raises TransportError: the answer is cut or makes no sense
        """
        found: list[list[str] | None] = []
        for line in answer.lines:
            if line.strip() in ("=", "-"):
                found.append([] if line.strip() == "=" else None)
            elif line.strip() and found and (last := found[-1]) is not None:
                last.append(line.strip())
        if answer.status != 0 or len(found) != len(self.parts):
            raise TransportError(f"files could not be read: {answer.words}")
        try:
            return [None if lines is None else base64.b64decode("".join(lines)) for lines in found]
        except binascii.Error as error:
            raise TransportError(f"files came damaged: {error}") from error
