"""Copies a file into a staging area: in parts, verified by checksum, then renamed into place.

A copy is named by the address and version of its file, so an existing copy is complete and has the right content.
"""

from __future__ import annotations

import hashlib
import shlex
import uuid
from collections.abc import Iterable

from lading.hooks.files.addresses import fitting
from lading.hooks.site import StagingArea
from lading.hooks.ssh.answer import CommandResult, TransportError
from lading.hooks.ssh.steps import RunCommand, quoted
from lading.hooks.staging.sources import PART, PART_TIMEOUT, FileSource, FileVersion


def key(address: str) -> str:
    return hashlib.sha1(address.encode(errors="surrogatepass"), usedforsecurity=False).hexdigest()


def place(address: str, version: FileVersion) -> tuple[str, str]:
    """Return the folder of a copy within its staging area, and the name of the copy, which is that of the file."""
    digest = hashlib.sha1(f"{version.size} {version.mark}".encode(), usedforsecurity=False).hexdigest()[:12]
    name = address.rstrip("/").rpartition("/")[2]
    return f"{key(address)}.{digest}", "file" if name in ("", ".", "..") else fitting(name)


def find_file(area: StagingArea, address: str, version: FileVersion | None) -> str | None:
    """Return where the jobs of a staging area can read a file, the original or a copy; None: nowhere.

    :param version: the wanted version; None: unknown, so any file at this address is accepted
    :raises OSError: the machine could not be asked
    """
    lines = []
    if address.startswith("/"):
        same = f"[ \"$(stat -Lc '%s %Y' -- {quoted(address)})\" = '{version.size} {version.mark}' ]" if version else ":"
        lines.append(f"if [ -r {quoted(address)} ] && {same}; then printf '%s\\n' {shlex.quote(address)}; exit; fi")
    if version is not None:
        folder, name = (shlex.quote(each) for each in place(address, version))
        lines += [
            f"cd -P -- {quoted(area.folder)} 2>/dev/null || exit 0",
            f'[ ! -f {folder}/{name} ] || printf "%s/%s/%s\\n" "$PWD" {folder} {name}',
        ]
    return _done(area, "\n".join(lines)).stdout.removesuffix("\n") or None


def brought(area: StagingArea, address: str, source: FileSource, version: FileVersion) -> str:
    """Copy a file into a staging area and return its path there.

    :param version: the version at the source
    :raises OSError: copying failed
    """
    part, digest = f".{uuid.uuid4().hex}", hashlib.sha256()
    enter = f"umask 077; mkdir -p -- {quoted(area.folder)} && cd -P -- {quoted(area.folder)} || exit"
    try:
        for number, data in enumerate(source.parts(version.size)):
            digest.update(data)
            blocks = number * (PART // 2**20)
            write = f"dd of={part} bs=1048576 seek={blocks} conv=notrunc iflag=fullblock status=none"
            _done(area, f"{enter}\n{write}", data)
        if source.version() != version:
            raise OSError(f"{address} has changed while it was read")
        folder, name = (shlex.quote(each) for each in place(address, version))
        lines = [
            enter,
            f"[ -f {part} ] || : > {part}",
            f"sum=$(sha256sum < {part}) || exit",
            f'[ "${{sum%% *}}" = {digest.hexdigest()} ] || {{ echo "what arrived is not what was sent" >&2; exit 1; }}',
            f"mkdir -p {folder} && chmod 400 {part} && mv -f {part} {folder}/{name} || exit",
            f'printf "%s/%s/%s\\n" "$PWD" {folder} {name}',
        ]
        # Any machine can compute a checksum of 20 MiB per second.
        return _done(area, "\n".join(lines), timeout=60 + version.size / (20 * 2**20)).stdout.removesuffix("\n")
    except BaseException:
        area.transport.exchange([RunCommand(f"cd -- {quoted(area.folder)} && rm -f {part}")])
        raise


def swept(area: StagingArea, addresses: Iterable[str]) -> int:
    """Remove copies that are no longer needed, and abandoned incomplete ones; return how many copies were removed.

    :param addresses: the files whose copies are needed
    :raises OSError: it failed
    """
    needed = "".join(f"{each}\n" for each in sorted(map(key, addresses)))
    answer = _done(
        area,
        f"cd -- {quoted(area.folder)} 2>/dev/null || exit 0\n"
        "needed=$(cat)\n"
        "for each in *; do\n"
        '[ -d "$each" ] || continue\n'
        'case "$needed" in *"${each%%.*}"*) continue;; esac\n'
        'mv -- "$each" ".$each.gone" && rm -rf -- ".$each.gone" && echo "$each"\n'
        "done\n"
        # A copy that is incomplete after a day has been abandoned.
        "find . ! -name . -prune -name '.*' -mtime +0 -exec rm -rf -- {} +",
        needed.encode(),
    )
    return len(answer.stdout.split())


def _done(area: StagingArea, text: str, stdin: bytes | None = None, timeout: float = PART_TIMEOUT) -> CommandResult:
    """Run shell lines in a staging area and return their result.

    :raises OSError: they failed
    """
    (answer,) = area.transport.exchange([RunCommand(text, stdin=stdin)], timeout)
    if answer.status is None:
        raise TransportError(answer.message)
    if answer.status != 0:
        raise OSError(area.transport.fault(answer))
    return answer
