"""Removal of leftovers by age, from Lading's folder on a cluster and from this machine."""

from __future__ import annotations

import contextlib
import shlex
import stat
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from lading.hooks.batch.status_query import StatusQuery
from lading.hooks.batch.system import BatchSystem, CouldNotAsk, NativeJob
from lading.hooks.cleanup import leftovers
from lading.hooks.files.host import file_time
from lading.hooks.site import RemovedLeftovers
from lading.hooks.ssh.answer import TransportError
from lading.hooks.ssh.transport import Transport


def clean_cluster(
    transport: Transport,
    system: BatchSystem,
    root: str,
    sorts: Iterable[leftovers.LeftoverKind],
    *,
    older_than: float,
    keep: Collection[str],
    dry_run: bool,
) -> list[RemovedLeftovers]:
    """Remove leftovers from a cluster, in three round trips regardless of their number.

    :param root: Lading's folder on the cluster, absolute
    :param older_than: seconds since the last change to anything in them; an hour is added, since the clocks of a
        cluster can differ
    :param keep: the tokens of live jobs and runs
    :param dry_run: only report what would be removed
    :raises TransportError: the cluster or its batch system did not answer; leftovers may have been removed in part
    :raises ValueError: the age is too small
    """
    living = leftovers.job_identifiers(_jobs(transport, system, root))
    step = leftovers.sweep(root, sorts, {*keep, *living}, older_than, dry_run=dry_run)
    (answer,) = transport.exchange([step], leftovers.LIMIT + 60.0)
    return leftovers.swept(answer)


def clean_files(kind: str, files: Iterable[Path], *, older_than: float, dry_run: bool) -> list[RemovedLeftovers]:
    """Remove the given local files that are regular files and have not changed for ``older_than`` seconds.

    The folders may be on a file server. Its clock dates the files, so it also supplies the current time.
    """
    times: dict[Path, float] = {}
    number, size, troubles = 0, 0, []
    for path in files:
        with contextlib.suppress(FileNotFoundError):  # another process has removed it
            found = path.lstat()
            if not stat.S_ISREG(found.st_mode):
                continue
            try:
                if path.parent not in times:
                    times[path.parent] = file_time(path.parent)
                if found.st_mtime >= times[path.parent] - older_than:
                    continue
                if not dry_run:
                    path.unlink()
            except PermissionError as error:
                troubles.append(str(error))
                continue
            number, size = number + 1, size + found.st_size
    trouble = f"{len(troubles)} could not be removed: {troubles[0]}" if troubles else None
    return [RemovedLeftovers(kind, number, size / 2**20, trouble)] if number or troubles else []


def _jobs(transport: Transport, system: BatchSystem, root: str) -> Sequence[NativeJob]:
    """Return the user's jobs, also those in clusters that a script below the folder names."""
    scripts = r"-maxdepth 4 -type f \( -name script -o -name lading.sh \)"
    directives = f"find {shlex.quote(root)} {scripts} -exec grep -h '^{system.prefix} ' {{}} + 2>/dev/null | sort -u"
    answer, found = transport.run(["id -un", directives])
    user = answer.stdout.strip()
    if answer.status != 0 or not user or found.status is None:
        raise TransportError(transport.fault(answer))
    clusters = {cluster for line in found.lines for cluster in system.clusters_of_script(line)}
    query = StatusQuery(system, user, by_name=True, clusters=clusters)
    (answer,) = transport.run([query.command])
    try:
        jobs = query.read(answer)
    except CouldNotAsk as error:
        raise TransportError(f"{system.name} did not report the running jobs: {error.message}") from None
    if silent := clusters.difference(jobs.clusters):
        raise TransportError(f"{system.name} did not report the running jobs of {', '.join(sorted(silent))}")
    return jobs.jobs
