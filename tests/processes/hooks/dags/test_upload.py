"""Dag bundles on their way to a cluster, which is a folder of this machine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lading.executors.agent.job_folder import Supervisor
from lading.hooks.cluster.jobs.layout import ClusterFolder
from lading.hooks.dags import upload
from lading.hooks.dags.bundles import AirflowBundles, Bundle, DagBundles
from lading.hooks.dags.upload import BundleStates, BundleSync
from lading.hooks.spool.spool import Envelope, JobFolder
from lading.hooks.ssh.answer import CommandResult, TransportError
from lading.hooks.ssh.exchange import Exchange
from lading.hooks.ssh.local_transport import ShellTransport
from lading.scheduling.model.reasons import because
from lading.scheduling.model.resources import Resources


class Folders(AirflowBundles):
    """Bundles that are folders of one folder; a version is one below."""

    def __init__(self, root: Path) -> None:
        super().__init__()
        self.root = root

    def is_installed(self, name: str) -> bool:
        return name == "examples"

    @contextmanager
    def open(self, bundle: Bundle) -> Iterator[Path]:
        yield self.root / bundle.name / (bundle.version or "")


class Way(ShellTransport):
    """The way to the cluster; it counts, and may lose an answer."""

    exchanges = 0
    bytes = 0
    loses = False

    def _converse(self, exchange: Exchange, timeout: float) -> None:
        self.exchanges += 1
        self.bytes += len(exchange.script)
        super()._converse(exchange, timeout)
        if self.loses:
            self.loses = False
            raise TransportError("the connection is cut")


class Cluster:
    def __init__(self, folder: Path) -> None:
        self.dags = folder / "dags"
        self.folder = ClusterFolder(str(folder / "the site's"))
        self.bundles = Path(self.folder.bundles)
        self.way = Way()
        self.sync = self.controller()

    def controller(self) -> BundleSync:
        return BundleSync(self.folder.bundles, DagBundles(1, Folders(self.dags)))

    def write(self, name: str, text: str) -> None:
        path = self.dags / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def prepare(self, *names: str, version: str | None = None) -> BundleStates:
        return self.sync.prepare(self.way, [envelope(name, version) for name in names])

    def there(self) -> list[str]:
        return sorted(path.name for path in self.bundles.iterdir())


def envelope(name: str | None, version: str | None = None) -> Envelope:
    workload = {"bundle_info": {"name": name, "version": version}} if name else {}
    return Envelope("t", workload, Resources(), None, None, 0, 0.0, 0.0)


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path)


def test_each_content_is_sent_once(cluster: Cluster) -> None:
    cluster.write("mine/dag.py", "a")
    cluster.write("mine/lib/util.py", "b")
    (cluster.dags / "mine/dag.py").chmod(0o755)
    bound = cluster.prepare("mine")
    [hash] = cluster.there()
    assert bound.hash_of(envelope("mine")) == hash
    there = cluster.bundles / hash
    assert (there / "lib/util.py").read_text() == "b"
    modes = {path.name: path.stat().st_mode & 0o777 for path in (there, *there.rglob("*"))}
    assert modes == {hash: 0o700, "lib": 0o700, "dag.py": 0o700, "util.py": 0o600}
    sent = cluster.way.bytes
    cluster.way.exchanges = 0
    cluster.write("other/dag.py", "a")
    cluster.write("other/lib/util.py", "b")
    (cluster.dags / "other/dag.py").chmod(0o755)
    assert cluster.prepare("mine", "other").hash_of(envelope("other")) == hash, "the same content under another name"
    assert cluster.way.exchanges == 0
    cluster.sync = cluster.controller()
    assert cluster.prepare("mine").hash_of(envelope("mine")) == hash
    assert cluster.way.exchanges == 1, "a new controller asks what is there"
    assert cluster.way.bytes < 2 * sent
    cluster.write("mine/dag.py", "c")
    new = cluster.prepare("mine").hash_of(envelope("mine"))
    assert cluster.there() == sorted([hash, new])
    assert (there / "dag.py").read_text() == "a", "jobs on their way read what they were bound to"


def test_the_job_is_given_the_folder(cluster: Cluster) -> None:
    bound = upload.bind(envelope("mine"), cluster.folder.bundles, "0a1b")
    assert bound.dags == f"{cluster.bundles}/0a1b"
    assert Envelope.from_json(bound.to_json()) == bound
    assert upload.bind(bound, cluster.folder.bundles, "").dags is None


def test_jobs_that_need_nothing(cluster: Cluster) -> None:
    bound = cluster.sync.prepare(cluster.way, [envelope(None)])
    assert cluster.way.exchanges == 0
    assert (bound.hash_of(envelope(None)), bound.wait_of(envelope(None))) == ("", None)
    bound = cluster.prepare("examples")
    assert (bound.hash_of(envelope("examples")), bound.wait_of(envelope("examples"))) == ("", None)


def test_a_bundle_that_cannot_be_read_or_is_too_large(cluster: Cluster) -> None:
    cluster.write("large/data", "x" * 2**21)
    cluster.write("mine/dag.py", "a")
    bound = cluster.prepare("missing", "large", "mine")
    assert "'missing' cannot be read" in str(bound.wait_of(envelope("missing")))
    assert "more than max_bundle_size = 1 MiB" in str(bound.refusal_of(envelope("large")))
    assert bound.hash_of(envelope("mine")), "one of them does not hold up the others"


def test_a_large_one_comes_in_parts(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upload._Upload, "part_bytes", 1000)
    (cluster.dags / "mine").mkdir(parents=True)
    (cluster.dags / "mine/data").write_bytes(os.urandom(2500))
    cluster.write("other/dag.py", "a")
    waits = [cluster.prepare("mine", "other").wait_of(envelope("mine")) for _ in range(3)]
    assert waits == [because("bundle_sending", bundle="mine")] * 2 + [None]
    assert cluster.way.exchanges == 1 + 3, "in each round one"
    bound = cluster.prepare("mine", "other")
    assert bound.hash_of(envelope("mine")) != bound.hash_of(envelope("other"))
    assert len(cluster.there()) == 2, "nothing is left beside them"


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_an_answer_is_lost(cluster: Cluster, monkeypatch: pytest.MonkeyPatch, lost: int) -> None:
    monkeypatch.setattr(upload._Upload, "part_bytes", 1000)
    (cluster.dags / "mine").mkdir(parents=True)
    (cluster.dags / "mine/data").write_bytes(os.urandom(2500))
    for number in range(5):
        cluster.way.loses = number == lost and number > 0
        if cluster.way.loses:
            with monkeypatch.context() as cut:
                cut.setattr(Exchange, "answers", lambda self, trouble: [CommandResult(None, "", trouble)])
                with pytest.raises(TransportError, match="cut"):
                    cluster.prepare("mine")
        else:
            bound = cluster.prepare("mine")
    [hash] = cluster.there()
    assert bound.hash_of(envelope("mine")) == hash


def test_two_controllers_and_a_crash(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upload._Upload, "part_bytes", 1000)
    (cluster.dags / "mine").mkdir(parents=True)
    (cluster.dags / "mine/data").write_bytes(os.urandom(1500))
    first = cluster.sync
    assert cluster.prepare("mine").wait_of(envelope("mine"))
    cluster.sync = cluster.controller()
    assert cluster.prepare("mine").wait_of(envelope("mine")), "what has arrived for another is no bundle"
    hash = cluster.prepare("mine").hash_of(envelope("mine"))
    assert first.prepare(cluster.way, [envelope("mine")]).hash_of(envelope("mine")) == hash
    assert cluster.there() == [hash]
    assert [path.name for path in (cluster.bundles / hash).iterdir()] == ["data"]


def test_what_cannot_be_written_waits(cluster: Cluster) -> None:
    cluster.write("mine/dag.py", "a")
    cluster.bundles.mkdir(parents=True)
    tools = cluster.dags.parent / "bin"
    tools.mkdir()
    (tools / "tar").write_text("#!/bin/sh\necho 'No space left on device' >&2\nexit 2\n")
    (tools / "tar").chmod(0o755)
    cluster.way.setup = f"PATH={tools}:$PATH"
    for _ in range(2):
        words = str(cluster.prepare("mine").wait_of(envelope("mine")))
        assert "could not be written to" in words
        assert "No space left" in words
    cluster.way.setup = ""
    assert cluster.prepare("mine").wait_of(envelope("mine")) is None


def test_what_is_unused_is_removed_after_a_day(cluster: Cluster) -> None:
    young, old, used, waiting, running = (f"{number:040x}" for number in range(5))
    for name in (young, old, used, waiting, running, ".half"):
        (cluster.bundles / name / "lib").mkdir(parents=True)
        if name != young:
            os.utime(cluster.bundles / name, (1, 1))
    # Neither of these is known to the controller.
    inbox, jobs = cluster.bundles.parent / "spool/inbox", cluster.bundles.parent / "allocations/L1/spool/jobs/b"
    for folder in (inbox, jobs):
        folder.mkdir(parents=True)
    (inbox / "a.json").write_text(upload.bind(envelope("mine"), cluster.folder.bundles, waiting).to_json())
    dags = cluster.folder.bundle(running)
    Supervisor(1, 1, "boot", 0.0, 0.0, Resources(), None, None, dags=dags).write(JobFolder(jobs))
    step = cluster.sync.sweep({used, ""})
    assert step is not None
    [answer] = cluster.way.exchange([step])
    assert sorted(filter(None, answer.lines)) == [".half", old]
    assert cluster.there() == sorted([young, used, waiting, running])
    assert cluster.sync.sweep(()) is None, "not again so soon"


def test_what_was_removed_is_sent_again(cluster: Cluster) -> None:
    cluster.write("mine/dag.py", "a")
    hash = cluster.prepare("mine").hash_of(envelope("mine"))
    os.utime(cluster.bundles / hash, (1, 1))
    step = cluster.sync.sweep(())
    assert step is not None
    cluster.sync.swept(*cluster.way.exchange([step]))
    assert cluster.there() == []
    assert cluster.prepare("mine").hash_of(envelope("mine")) == hash
    assert cluster.there() == [hash]
