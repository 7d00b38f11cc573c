"""The meter of memory on real processes, against what the kernel says of each page.

Each way to use memory is measured as root, who can look into all processes, and as a user, who can look into a process
of his own until that makes itself undumpable; in a process that was executed as well as in one that was only forked.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest

from lading.executors.agent import limits, process_tree
from lading.executors.agent.job_folder import Supervisor
from lading.executors.agent.limits import LimitEnforcer
from lading.executors.agent.process_tree import MIB, MemoryMeter, Process, ProcessMemory
from lading.executors.agent.running import RunningJob
from lading.hooks.files import host
from lading.hooks.spool.spool import JobFolder
from lading.scheduling.model.resources import Resources
from tests.services import unprivileged
from tests.services.processes import wait_until

ROOT = Path(__file__).parents[4]
PAGE = os.sysconf("SC_PAGE_SIZE")
# Of the interpreter, and of numpy where it is imported, MiB.
INTERPRETER = 40

PROLOGUE = """
import ctypes, mmap, os, signal, subprocess, sys, time
from multiprocessing import resource_tracker, shared_memory
MIB = 2**20
path, go, count = sys.argv[1], sys.argv[2], [0]
def ready(): open(go + ".ready", "w").close()
def wait_for(name):
    while not os.path.exists(go + "." + name): time.sleep(0.01)
def fork(work):
    if (pid := os.fork()) == 0:
        try: work()
        finally: os._exit(0)
    return pid
def sleep():
    while True: time.sleep(600)
def touch(memory, value=1):
    for at in range(0, len(memory), 4096): memory[at] = value
def many(number, work):
    "Fork processes, and wait until each has done its work."
    done, ours = os.pipe()
    def one(): work(); os.write(ours, b"."); sleep()
    for _ in range(number): fork(one)
    for _ in range(number): os.read(done, 1)
def hide(*_): assert ctypes.CDLL(None).prctl(4, 0, 0, 0, 0) == 0
signal.signal(signal.SIGUSR1, hide)
def data(mib): return bytearray(os.urandom(MIB)) * mib
"""


@dataclass(frozen=True)
class Use:
    """A way to use memory.

    :param code: what does it, after which it sleeps
    :param counts: MiB that count
    :param hidden: MiB that count where the kernel shows totals only; None: the same
    :param file: MiB of a file in page cache, written just before by another process
    """

    code: str
    counts: int
    hidden: int | None = None
    file: int = 0


USES = {
    "nothing": Use("", 0),
    "an array": Use("kept = data(100)", 100),
    "a mapped array that is written": Use(
        "import numpy; kept = numpy.memmap(path, numpy.uint8, 'w+', shape=128 * MIB); kept[:] = 1", 0
    ),
    "a mapped array that is read": Use(
        "import numpy; kept = numpy.memmap(path, numpy.uint8, 'r'); print(kept.sum())", 0, file=128
    ),
    "a mapped array that is changed in memory alone": Use(
        "import numpy; kept = numpy.memmap(path, numpy.uint8, 'c'); kept[:] = 1", 128, file=128
    ),
    # As LMDB with MDB_WRITEMAP: a sparse file, mapped as a whole, pages written here and there, flushed now and then.
    "a mapped database": Use(
        "os.truncate(path, 256 * MIB); kept = mmap.mmap(os.open(path, os.O_RDWR), 256 * MIB)\n"
        "for part in range(64): touch(memoryview(kept)[part * 4 * MIB:][:2 * MIB]); part % 8 or kept.flush()",
        0,
        file=1,
    ),
    "a file that is written, and not mapped": Use("open(path, 'wb').write(bytes(128 * MIB))", 0),
    "shared memory": Use(
        "kept = shared_memory.SharedMemory(create=True, size=64 * MIB); name = kept.name\n"
        "resource_tracker.unregister(kept._name, 'shared_memory')\n"
        "touch(kept.buf); os.unlink('/dev/shm/' + name)\n"
        "many(3, lambda: touch(kept.buf))",
        64,
    ),
    "shared memory of programs": Use(
        "kept = shared_memory.SharedMemory(create=True, size=64 * MIB)\n"
        "resource_tracker.unregister(kept._name, 'shared_memory')\n"
        "other = f\"import mmap, time; m = mmap.mmap(open('/dev/shm/{kept.name}', 'r+b').fileno(), 0)\\n\"\n"
        "other += 'for at in range(0, len(m), 4096): m[at] = 1\\nprint(flush=True); time.sleep(600)'\n"
        "touch(kept.buf)\n"
        "for _ in range(2): subprocess.Popen([sys.executable, '-c', other], stdout=-1).stdout.readline()\n"
        "os.unlink('/dev/shm/' + kept.name)",
        64,
    ),
    "a mapping that forks share": Use("kept = mmap.mmap(-1, 64 * MIB); many(3, lambda: touch(kept))", 64),
    "a file in tmpfs that is mapped": Use(
        "file = os.memfd_create('kept'); os.truncate(file, 64 * MIB); kept = mmap.mmap(file, 64 * MIB); touch(kept)", 64
    ),
    "a file in tmpfs that is not mapped": Use(
        "file = os.memfd_create('kept')\nfor _ in range(64): os.write(file, bytes(MIB))", 0
    ),
    "transparent huge pages": Use(
        "kept = mmap.mmap(-1, 64 * MIB, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)\n"
        "kept.madvise(mmap.MADV_HUGEPAGE); touch(kept)",
        64,
    ),
    "huge pages": Use(
        "kept = mmap.mmap(-1, 32 * MIB, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x40000); touch(kept)", 32
    ),
    "huge pages that forks share": Use(
        "kept = mmap.mmap(-1, 32 * MIB, mmap.MAP_SHARED | mmap.MAP_ANONYMOUS | 0x40000)\n"
        "touch(kept); many(3, lambda: touch(kept))",
        32,
    ),
    "a pool": Use("kept = data(100); many(4, lambda: None)", 100),
    # By totals alone a page that a child has copied looks like one that it has inherited.
    "a pool that copies": Use("kept = data(100); many(4, lambda: touch(memoryview(kept)[:50 * MIB]))", 300, hidden=100),
    "a pool that adds": Use("kept = data(50); many(2, lambda: globals().update(more=data(60)))", 170, hidden=120),
    "a pool that reads a mapped file, and copies": Use(
        "import numpy; kept = data(60)\n"
        "def work():\n"
        "    touch(memoryview(kept)[:50 * MIB]); globals().update(mapped=numpy.memmap(path, numpy.uint8, 'r+'))\n"
        "    mapped[:] = 1\n"
        "many(2, work)",
        160,
        hidden=60,
        file=64,
    ),
    "forked, then executed": Use(
        "kept = data(60)\n"
        "code = 'import os, time; kept = bytearray(os.urandom(2**20)) * 50; print(flush=True); time.sleep(600)'\n"
        "subprocess.Popen([sys.executable, '-c', code], stdout=-1).stdout.readline()",
        110,
    ),
}

Run = Callable[..., int]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    """Start Python code and wait until it is ready; the pid of what is to be measured. All is killed in the end."""
    started: list[subprocess.Popen[bytes]] = []

    def start(code: str, *, forked: bool = False, file: int = 0) -> int:
        path = tmp_path / "file"
        path.write_bytes(bytes(file * MIB))
        body = f"{code}\nready(); sleep()"
        if forked:  # from a process that has a heap of its own
            body = f"heap = data(30)\ndef work(): exec({body!r}, globals())\nfork(work)\nsleep()"
        go = tmp_path / str(len(started))
        command = unprivileged.command(sys.executable, "-c", PROLOGUE + body, str(path), str(go))
        process = subprocess.Popen(command, start_new_session=True, cwd=ROOT)
        started.append(process)
        assert wait_until(lambda: process.poll() is not None or Path(f"{go}.ready").exists(), 120)
        assert process.poll() is None, "it has failed"
        return process_tree.descendants(process.pid)[0].pid if forked else process.pid

    yield start
    for process in started:
        process_tree.send(process_tree.tree(process.pid), signal.SIGKILL)
        process.wait()


def measure(pid: int) -> int:
    meter, found = MemoryMeter(), process_tree.tree(pid)
    meter.watch(found)
    used = meter.measure(found)
    assert meter.unseen == 0
    assert abs(meter.at_least - used) <= 1
    return used


def test_a_process_that_ends_during_a_sample_leaves_it_incomplete() -> None:
    meter = MemoryMeter()
    with subprocess.Popen(["sleep", "1000"]) as process:
        [found] = process_tree.tree(process.pid)
        meter.watch([found])
        assert meter.is_whole
        process.kill()
        assert wait_until(lambda: "State:\tZ" in Path(f"/proc/{process.pid}/status").read_text(), 60)
        meter.watch([found])
        assert not meter.is_whole


def measure_as_user(pid: int) -> int:
    code = "import sys; from tests.processes.executors.agent.test_memory_meter import measure; "
    command = unprivileged.command(sys.executable, "-c", code + "print(measure(int(sys.argv[1])))", str(pid))
    return int(subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout)


SHARED = ("/dev/shm/", "/dev/zero", "/SYSV", "/memfd:")
IS_PRESENT, IS_FILE_OR_SHARED, FRAME = 1 << 63, 1 << 61, (1 << 55) - 1


def frames(pid: int) -> tuple[set[int], set[int]]:
    """The page frames of a process: those of anonymous pages, and those of shared memory."""
    anonymous, shared = set(), set()
    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/pagemap", "rb", buffering=0) as pages:
        for line in maps:
            words = line.split(maxsplit=5)
            first, last = (int(word, 16) // PAGE for word in words[0].split("-"))
            name = words[5] if len(words) > 5 else ""
            if name.startswith("[v") or "hugepage" in name:
                continue
            pages.seek(first * 8)
            for entry in array("Q", pages.read((last - first) * 8)):
                if entry & IS_PRESENT and not entry & IS_FILE_OR_SHARED:
                    anonymous.add(entry & FRAME)
                elif entry & IS_PRESENT and name.startswith(SHARED):
                    shared.add(entry & FRAME)
    return anonymous - {0}, shared - {0}


def kernels_figure(pid: int, *, forked: bool) -> int:
    """MiB of the pages that the tree has and its parent has not, each once: only root learns which they are."""
    anonymous, shared = set[int](), set[int]()
    for process in process_tree.tree(pid):
        own, common = frames(process.pid)
        anonymous |= own
        shared |= common
    if forked:
        found = Process.read(pid)
        assert found is not None
        anonymous -= frames(found.parent)[0]
    return (len(anonymous) + len(shared)) * PAGE // MIB


def is_possible(use: str) -> bool:
    """Whether this machine has that kind of memory: no service that could be installed."""
    if "mapped" in use:  # a temporary file in memory would count
        command = ["stat", "-f", "-c", "%T", tempfile.gettempdir()]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() != "tmpfs"
    if use.startswith("huge"):
        pages = Path("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages")
        return pages.exists() and int(pages.read_text()) >= 16
    setting = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    return not use.startswith("transparent") or (setting.exists() and "[never]" not in setting.read_text())


USES_HERE = [use for use in USES if is_possible(use)]


@pytest.mark.parametrize("forked", [False, True], ids=["executed", "forked"])
@pytest.mark.parametrize("use", USES_HERE)
def test_what_counts(use: str, forked: bool, run: Run, tmp_path: Path) -> None:
    case = USES[use]
    pid = run(case.code, forked=forked, file=case.file)
    of_interpreters = INTERPRETER * (3 if "programs" in use else 2 if "executed" in use else 1)
    if os.geteuid() == 0:
        used = measure(pid)
        assert case.counts - 2 <= used <= case.counts + of_interpreters
        if not use.startswith("huge"):  # their frames are none of the kernel's ordinary pages
            figure = kernels_figure(pid, forked=forked)
            assert abs(used - figure) <= max(2, figure // 20)
    assert case.counts - 2 <= measure_as_user(pid) <= case.counts + of_interpreters
    hide(pid)
    least = case.counts if case.hidden is None else case.hidden
    assert least - 2 <= measure_as_user(pid) <= case.counts + of_interpreters


def hide(pid: int) -> None:
    """Let the processes make themselves undumpable, as Airflow's tasks do; a program that they execute is not."""
    hidden = [each for each in process_tree.tree(pid) if each.pid == pid or each.forked_without_exec]
    process_tree.send(hidden, signal.SIGUSR1)
    look = 'for pid; do cat "/proc/$pid/smaps_rollup" 2>/dev/null; done'
    command = unprivileged.command("/bin/sh", "-c", look, "sh", *(str(each.pid) for each in hidden))
    assert wait_until(lambda: not subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE).stdout, 30)


@pytest.fixture(params=["shown", "hidden"])
def totals_only(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the kernel shows totals only, as to a user of undumpable processes (see above for real ones)."""
    if request.param == "hidden" or os.geteuid():
        monkeypatch.setattr(ProcessMemory, "read", ProcessMemory.read_totals)
    return bool(request.param == "hidden" or os.geteuid())


FAMILY = """
import lading.executors.agent.process_tree as process_tree; process_tree.adopt_orphans()
def family():
    kept = data(100)
    children = [fork(sleep) for _ in range(3)]
    open(go + ".forked", "w").close()
    wait_for("on")
    {then}
def let_go():
    global kept
    kept = data(100)
    many(3, lambda: None)
    open(go + ".forked", "w").close()
    wait_for("on")
    kept = None
    open(go + ".done", "w").close()
    sleep()
fork({what})
ready(); sleep()
"""


def test_what_a_process_leaves_to_its_children_counts_once(run: Run, tmp_path: Path, totals_only: bool) -> None:
    meter, pid = MemoryMeter(), run(FAMILY.format(what="family", then="pass"))
    assert wait_until((tmp_path / "0.forked").exists, 30)
    assert 98 <= look(meter, pid) <= 140
    (tmp_path / "0.on").touch()
    assert wait_until(lambda: len(process_tree.tree(pid)) == 4, 30)
    assert 98 <= look(meter, pid) <= 140
    first, *others = process_tree.descendants(pid)
    process_tree.send([first], signal.SIGKILL)
    assert wait_until(lambda: len(process_tree.tree(pid)) == 3, 30)
    assert 98 <= look(meter, pid) <= 140, "it may have been the one that stood in for the parent"
    process_tree.send(others, signal.SIGKILL)
    assert wait_until(lambda: len(process_tree.tree(pid)) == 1, 30)
    assert look(meter, pid) < 40


def test_what_a_process_becomes_that_its_children_share_with_it(run: Run, tmp_path: Path, totals_only: bool) -> None:
    """Another program: then what it had is theirs alone."""
    then = "os.execv('/bin/sleep', ['sleep', '600'])"
    meter, pid = MemoryMeter(), run(FAMILY.format(what="family", then=then))
    assert wait_until((tmp_path / "0.forked").exists, 30)
    assert 98 <= look(meter, pid) <= 140
    (tmp_path / "0.on").touch()
    assert wait_until(lambda: not all(each.forked_without_exec for each in process_tree.descendants(pid)), 30)
    assert 98 <= look(meter, pid) <= 140


def test_what_only_the_children_still_have_counts_where_the_kernel_shows_it(
    run: Run, tmp_path: Path, totals_only: bool
) -> None:
    meter, pid = MemoryMeter(), run(FAMILY.format(what="let_go", then="pass"))
    assert wait_until((tmp_path / "0.forked").exists, 30)
    assert 98 <= look(meter, pid) <= 140
    (tmp_path / "0.on").touch()
    assert wait_until((tmp_path / "0.done").exists, 30)
    assert look(meter, pid) < 40 if totals_only else 98 <= look(meter, pid) <= 140


def test_an_orphan_has_inherited_from_a_process_that_was_there_before(
    run: Run, tmp_path: Path, totals_only: bool
) -> None:
    """A daemon is forked by a process that is gone before anyone looks, and is the child of the tree's root then."""
    code = """
import lading.executors.agent.process_tree as process_tree; process_tree.adopt_orphans()
def task():
    kept = data(100); open(go + ".allocated", "w").close(); wait_for("on")
    os.waitpid(fork(lambda: fork(sleep)), 0); open(go + ".orphaned", "w").close(); sleep()
fork(task); ready(); sleep()
"""
    meter, pid = MemoryMeter(), run(code)
    assert wait_until((tmp_path / "0.allocated").exists, 30)
    assert 98 <= look(meter, pid) <= 140
    (tmp_path / "0.on").touch()
    assert wait_until((tmp_path / "0.orphaned").exists, 30)
    assert len(process_tree.tree(pid)) == 3
    assert 98 <= look(meter, pid) <= 140


def test_what_the_process_of_a_job_has_when_that_begins_is_not_the_jobs(
    run: Run, tmp_path: Path, totals_only: bool
) -> None:
    """Nor is it when the agent has gone with which it has shared that, and another one takes the job over."""
    code = """
kept = data(100)
def task(): more = data(50); ready(); sleep()
def supervisor(): fork(task); sleep()
fork(supervisor); wait_for("on"); os._exit(0)
"""
    agent = run(code)
    started, supervisor = host.started(agent), process_tree.descendants(agent)[0]
    try:
        (tmp_path / "0.on").touch()
        assert wait_until(lambda: not host.is_alive(agent, started), 30)
        meter = MemoryMeter()
        meter.begin(supervisor)
        assert 48 <= look(meter, supervisor.pid) <= 65
    finally:
        process_tree.send(process_tree.tree(supervisor.pid), signal.SIGKILL)


def test_a_child_that_runs_in_the_memory_of_its_parent_adds_nothing(run: Run, totals_only: bool) -> None:
    """As each process does between vfork and exec, by which subprocess starts programs."""
    code = """
kept, libc = data(100), ctypes.CDLL(None)
stack = ctypes.create_string_buffer(65536)
top = ctypes.c_void_p(ctypes.addressof(stack) + 65536 & ~15)
assert libc.clone(ctypes.cast(libc.pause, ctypes.c_void_p), top, 0x100 | signal.SIGCHLD, None) > 0  # CLONE_VM
"""
    pid = run(code)
    assert len(process_tree.tree(pid)) == 2
    assert 98 <= measure(pid) <= 140


def test_measuring_some_jobs_holds_up_the_looks_at_no_other(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in an allocation, whose agent has several jobs: each that needs measuring took from the others' looks."""
    clock, looked = [1000.0], dict[int, list[float]]()
    tree, read = process_tree.tree, ProcessMemory.read

    def look_at(root: int) -> list[Process]:
        clock[0] += 0.001
        looked.setdefault(root, []).append(clock[0])
        return tree(root)

    def measure_slowly(pid: int) -> ProcessMemory:
        clock[0] += 0.05
        return read(pid)

    code = """
kept = data(100)
def job(): touch(memoryview(kept)[:20 * MIB]); sleep()
for _ in range(6): fork(job)
time.sleep(1)
"""
    pids = [each.pid for each in process_tree.descendants(run(code))]
    monkeypatch.setattr(limits.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(limits.time, "thread_time", lambda: clock[0])
    monkeypatch.setattr(process_tree, "tree", look_at)
    monkeypatch.setattr(ProcessMemory, "read", measure_slowly)
    jobs = []
    for pid in pids:
        supervisor = Supervisor(pid, host.started(pid), host.boot_id(), 0.0, 0.0, Resources(1, 64), 64, None)
        jobs.append(RunningJob(f"job{pid}", JobFolder(tmp_path / str(pid)), supervisor, is_child=False))
    enforcer = LimitEnforcer()
    while clock[0] < 1030:
        clock[0] += max(enforcer.enforce(jobs, kill_grace=0.0), 0.001)
    assert [job.cause for job in jobs] == [None] * 6
    assert all(job.measured_at for job in jobs)
    for pid in pids:
        gaps = [after - before for before, after in pairwise(looked[pid])]
        assert max(gaps) < 2 * 0.2


def look(meter: MemoryMeter, pid: int) -> int:
    found = process_tree.tree(pid)
    meter.watch(found)
    return meter.measure(found)


def test_the_memory_of_no_process() -> None:
    assert ProcessMemory.read(2**22 + 1) == ProcessMemory(0, 0)
