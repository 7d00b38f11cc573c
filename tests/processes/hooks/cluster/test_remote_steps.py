"""The commands on a cluster other than those of its batch system, answered by real shells."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from lading.hooks.cluster.allocations import remote_steps as allocation_steps
from lading.hooks.cluster.jobs.layout import SPOOL_FOLDERS, ClusterFolder
from lading.hooks.cluster.jobs.remote_steps import NOT_TRIED, load, loaded, look_at_owner, place_envelopes, submit
from lading.hooks.files.owner import Owner
from lading.hooks.spool import server
from lading.hooks.ssh.answer import CommandResult
from lading.hooks.ssh.exchange import Exchange
from lading.hooks.ssh.steps import FilePart, Parts, RemoteStep

SHELLS = [shell for shell in ("dash", "bash", "ksh", "mksh", "busybox") if shutil.which(shell)]


def ask(steps: Sequence[RemoteStep], shell: str) -> list[CommandResult]:
    exchange = Exchange(steps)
    command = ["busybox", "sh"] if shell == "busybox" else [shell]
    done = subprocess.run([*command, "-c", 'eval "$(cat)"'], input=exchange.script, capture_output=True)
    exchange.receive(done.stdout, done.stderr)
    return exchange.answers("cut")


@pytest.mark.parametrize("shell", SHELLS)
def test_parts_of_files(shell: str, tmp_path: Path) -> None:
    (tmp_path / "a folder").mkdir()
    (tmp_path / "empty").touch()
    (tmp_path / "first").write_bytes(b"0123456789")
    (tmp_path / "a folder" / "it's").write_bytes(bytes(range(256)) * 2)
    wanted = [
        ("first", 0, b"0123456789"),
        ("absent", 0, None),
        ("first", 4, b"456789"),
        ("first", 10, b""),
        ("first", 99, b""),
        ("first", -3, b"789"),
        ("first", -99, b"0123456789"),
        ("a folder", 0, None),
        ("empty", 0, b""),
        ("empty", -5, b""),
        ("a folder/it's", 0, bytes(range(100))),
        ("a folder/it's", 250, bytes([*range(250, 256), *range(94)])),
        ("absent too", -5, None),
    ] * 20
    parts = Parts([FilePart(f"{tmp_path}/{name}", offset) for name, offset, _ in wanted], most=100)
    [answer] = ask([parts], shell)
    assert parts.contents(answer) == [content for *_, content in wanted]


@pytest.mark.parametrize("shell", SHELLS)
def test_envelopes_come_into_the_inbox(shell: str, tmp_path: Path) -> None:
    """Many at a time; not that of a job that has begun, nor a renewed one whose job has taken the old one."""
    folder = ClusterFolder(str(tmp_path))
    for name in (*(f"spool/{each}" for each in SPOOL_FOLDERS), "incoming/L1", "incoming/renewed-1", "spool/jobs/7"):
        (tmp_path / name).mkdir(parents=True)
    for number in range(450):
        (tmp_path / "incoming/L1" / f"{number}.json").write_text("new")
    (tmp_path / "spool/inbox/900.json").write_text("old")
    for number in (900, 901):
        (tmp_path / "incoming/renewed-1" / f"{number}.json").write_text("renewed")
    [answer] = ask([place_envelopes(folder.root, ["L1", "renewed-1"])], shell)
    assert answer == CommandResult(0)
    inbox = {path.stem: path.read_text() for path in (tmp_path / "spool/inbox").iterdir()}
    assert inbox == {**{str(number): "new" for number in range(450) if number != 7}, "900": "renewed"}
    assert not list((tmp_path / "incoming").iterdir())


@pytest.mark.parametrize("shell", SHELLS)
def test_nothing_is_submitted_whose_envelopes_did_not_come(shell: str, tmp_path: Path) -> None:
    folder = ClusterFolder(str(tmp_path))
    for name in ("L1", "L2"):
        (tmp_path / "incoming" / name).mkdir(parents=True)
        (tmp_path / "incoming" / name / f"{name}.json").write_text("new")
        (tmp_path / "submissions" / name).mkdir(parents=True)
        (tmp_path / "submissions" / name / "script").touch()
    submissions = [submit(folder, name, ["echo", "17"]) for name in ("L1", "L2")]
    placed, *answers = ask([place_envelopes(folder.root, ["L1", "L2"]), *submissions], shell)  # there is no inbox
    assert placed.status not in (0, None)
    assert [(answer.status, answer.stdout) for answer in answers] == [(NOT_TRIED, "")] * 2
    (tmp_path / "spool/inbox").mkdir(parents=True)
    placed, *answers = ask([place_envelopes(folder.root, ["L1", "L2"]), *submissions], shell)
    assert [answer.status for answer in (placed, *answers)] == [0, 0, 0]


@pytest.mark.parametrize("shell", SHELLS)
def test_what_others_have_written_costs_its_submission_alone(shell: str, tmp_path: Path) -> None:
    for name in ("L1", "L2", "L3"):
        (tmp_path / "submissions" / name).mkdir(parents=True)
        (tmp_path / "submissions" / name / "tasks").write_text("good\n")
    (tmp_path / "submissions/L1/tasks").write_text(".\n-\n=\tsubmissions/L9/\n/")
    (tmp_path / "submissions/L2/answer").write_text("a word of the filter\n-\n.\n17")
    (tmp_path / "submissions/L3/withdrawn").write_text("good\n")
    [answer] = ask([load(ClusterFolder(str(tmp_path)))], shell)
    _, found, begun = loaded(answer)
    assert [(each.name, each.answer, [*each.withdrawn]) for each in found] == [
        ("L2", "a word of the filter\n-\n.\n17", []),
        ("L3", None, ["good"]),
    ]
    assert begun == frozenset()
    for name in ("good", "."):
        (tmp_path / "spool/jobs" / f"x{name}").mkdir()
    [answer] = ask([load(ClusterFolder(str(tmp_path)))], shell)
    assert loaded(answer)[2] == {"xgood", "x."}


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("steps", [load, allocation_steps.load])
def test_a_folder_belongs_to_one_deployment(shell: str, steps: Callable[..., RemoteStep], tmp_path: Path) -> None:
    folder = ClusterFolder(str(tmp_path / "work dir"))
    ours = Owner.from_key("key", "", "https://airflow.example.org/it's $HOME")
    theirs = Owner.from_key("another", "", "http://laptop:8080")
    assert ask([steps(folder, ours)], shell)[0].status == 0
    assert ask([steps(folder, ours)], shell)[0].status == 0, "a restart, or a controller beside it"
    [refused] = ask([steps(folder, theirs)], shell)
    assert refused.status == 1
    for words in (ours.name, theirs.name, ours.ids[0], theirs.ids[0], "work_dir of its own", f"{folder.root}/owner"):
        assert words in refused.stderr
    assert ask([steps(folder, Owner.from_key("new, key", "", "the same"))], shell)[0].status == 0, "its key was rotated"
    assert [path.name for path in Path(folder.root).glob("owner*")] == ["owner"]
    [looked] = ask([look_at_owner(folder, theirs)], shell)
    assert (looked.status, looked.stderr) == (1, refused.stderr)
    assert ask([look_at_owner(folder, ours)], shell)[0].status == 0
    with pytest.raises(OSError, match="another deployment of Lading") as caught:
        server.claim(folder.root, theirs.ids, theirs.name)
    assert f"{caught.value}\n" == refused.stderr, "the same on machines"
    server.claim(folder.root, ours.ids, ours.name)


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("steps", [load, allocation_steps.load])
def test_a_deployment_with_a_name_of_its_own_keeps_its_folder(
    shell: str, steps: Callable[..., RemoteStep], tmp_path: Path
) -> None:
    folder, name = ClusterFolder(str(tmp_path)), "laptop:/it's $HOME/*/flow"
    before, after = (Owner.from_key(key, "", name, is_named=True) for key in ("old", "new"))
    for owner in (before, after, before):
        assert ask([steps(folder, owner)], shell)[0].status == 0
        server.claim(folder.root, owner.ids, owner.name)
    for other in ("laptop:/it's $HOME/x/flow", f"a {name}", "flow"):
        assert ask([steps(folder, Owner.from_key("new", "", other, is_named=True))], shell)[0].status == 1


@pytest.mark.parametrize("shell", SHELLS)
def test_a_look_at_a_folder_marks_nothing(shell: str, tmp_path: Path) -> None:
    owner = Owner.from_key("key", "", "here")
    for folder in (tmp_path, tmp_path / "none"):
        assert ask([look_at_owner(ClusterFolder(str(folder)), owner)], shell)[0].status == 0
    assert list(tmp_path.iterdir()) == []
