"""What the process of a job and its children have used."""

from __future__ import annotations

import resource


class ProcessUsage:
    """What this process and its children have used so far; amounts of memory are KiB."""

    def __init__(self) -> None:
        own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
        self.cpu_seconds = own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime
        self.own_peak = own.ru_maxrss
        self.childrens_peak = children.ru_maxrss
        self.childrens_faults = children.ru_minflt

    def peak_since(self, before: ProcessUsage) -> int:
        """The largest single process, less what it had from the start by being forked."""
        inherited = before.own_peak
        # Of all children that there have been; one of this job was the largest only if it has grown.
        children = self.childrens_peak if self.childrens_peak > before.childrens_peak else 0
        return max(children - max(inherited, self.own_peak), self.own_peak - inherited, 0)

    def touched_since(self, before: ProcessUsage) -> int:
        """What the children have made their own: each page costs a fault."""
        faults = self.childrens_faults - before.childrens_faults
        return min(faults * resource.getpagesize() // 1024, self.childrens_peak)
