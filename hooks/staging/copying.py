"""A file's way into a staging area: looked for, brought in parts, compared with what was read, renamed into its place.

A copy is named by the address of the file and by its version, so one that is there is whole and holds just that.
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

# Bytes that any machine reads in a second when it makes a checksum.
CHECKED_IN_A_SECOND = 20 * 2**20
# Days after which what is not complete belongs to no copy that is under way.
DAYS_ON_THE_WAY = 1


def key(address: str) -> str:
    """What a file is found by, and its copies in whichever version."""
    return hashlib.sha1(address.encode(errors="surrogatepass"), usedforsecurity=False).hexdigest()


def place(address: str, version: FileVersion) -> tuple[str, str]:
    """The folder of a copy in its area, and its name there, which is that of the file."""
    digest = hashlib.sha1(f"{version.size} {version.mark}".encode(), usedforsecurity=False).hexdigest()[:12]
    name = address.rstrip("/").rpartition("/")[2]
    return f"{key(address)}.{digest}", "file" if name in ("", ".", "..") else fitting(name)


def find_file(area: StagingArea, address: str, version: FileVersion | None) -> str | None:
    """Where a file lies for the jobs of a staging area, itself or as a copy; None: nowhere.

    :param version: that it has; None: that is not known, so whatever has its address will do
    :raises OSError: that could not be found out
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
    """Bring a file into a staging area; returns where it lies.

    :param version: that the source has
    :raises OSError: it could not be brought
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
        return _done(area, "\n".join(lines), timeout=60 + version.size / CHECKED_IN_A_SECOND).stdout.removesuffix("\n")
    except BaseException:
        area.transport.exchange([RunCommand(f"cd -- {quoted(area.folder)} && rm -f {part}")])
        raise


def swept(area: StagingArea, addresses: Iterable[str]) -> int:
    """Remove the copies that are not needed any more, and what was left on its way; returns how many were removed.

    :param addresses: of the files of which copies are needed
    :raises OSError: that could not be done
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
        f"find . ! -name . -prune -name '.*' -mtime +{DAYS_ON_THE_WAY - 1} -exec rm -rf -- {{}} +",
        needed.encode(),
    )
    return len(answer.stdout.split())


def _done(area: StagingArea, text: str, stdin: bytes | None = None, timeout: float = PART_TIMEOUT) -> CommandResult:
    """The answer to what was done in a staging area.

    :raises OSError: it could not be done
    """
    (answer,) = area.transport.exchange([RunCommand(text, stdin=stdin)], timeout)
    if answer.status is None:
        raise TransportError(answer.message)
    if answer.status != 0:
        raise OSError(area.transport.fault(answer))
    return answer
