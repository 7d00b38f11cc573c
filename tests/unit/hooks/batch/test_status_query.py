"""What is known of jobs from an answer: a state, "no such job", or "could not ask"."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence

import pytest

from lading.hooks.batch.slurm.system import SLURM
from lading.hooks.batch.status_query import Statuses, StatusQuery, accounted, is_called
from lading.hooks.batch.system import CouldNotAsk, NativeJob
from lading.hooks.ssh.answer import CommandResult
from tests.clusters.toy_batch import Toy

TITLES = "JOBID|STATE|NODELIST|REASON|start=START_TIME|NAME\n"


class ByUser(Toy):
    """Lists all jobs of the user."""

    def status(self, user: str, ids: Sequence[str] = ()) -> list[str]:
        return ["toy-list", "-u", user]


class ById(Toy):
    """Is queried by ids."""

    def status(self, user: str, ids: Sequence[str] = ()) -> list[str]:
        return ["toy-list", "-j", ",".join(ids)] if ids else ["toy-list", "-u", user]


def asked(system: Toy | SLURM, *ids: str, answer: CommandResult, by_name: bool = False) -> Statuses:
    return StatusQuery(system, "hpc", ids, by_name=by_name).read(answer)


def silent(found: Statuses, *ids: str) -> list[str]:
    return [id for id in ids if found.is_silent((id, None))]


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (CommandResult(0, "1 a\n2 b\n3 c\n"), ""),
        (CommandResult(0, "1 a\n"), "23"),
        (CommandResult(0, "ID NAME\n"), "123"),
        (CommandResult(1, "1 a\n", "no such job 3\n"), "2"),
        (CommandResult(1, "", "no such job 1\nno such job 2\nno such job 3\n"), ""),
        (CommandResult(1, "", "no such job\n"), ""),
        (CommandResult(1, "1 a\n", "no such job\n"), "23"),
        (CommandResult(1, "1 a\n", "no such job 31\nno such job 2.3\nno such job 2[3]\n"), "23"),
        (CommandResult(0, "", "no such job 2\n"), "13"),
    ],
)
def test_an_id_that_was_asked_for_and_not_answered(answer: CommandResult, expected: str) -> None:
    found = asked(ById(), "1", "2", "3", answer=answer)
    assert "".join(silent(found, "1", "2", "3")) == "".join(found.silent) == expected


@pytest.mark.parametrize(
    ("id", "others"),
    [
        ("1.pbs1", ["1", "11.pbs1", "1.pbs1.example.org", "1[].pbs1"]),
        ("12[].pbs1", ["12[]", "12[3].pbs1", "12.pbs1"]),
        ("a-17/x:2", ["a-17", "a-17/x:21", "17"]),
        ("7", ["7.1", "7[2]", "77", "x.7"]),
    ],
)
def test_an_id_is_a_whole_word(id: str, others: list[str]) -> None:
    for words in (
        f"no such job {id}",
        f"no such job: {id}.",
        f"{id}: no such job",
        f'"{id}" is no such job',
        f"<{id}> no such job",
    ):
        found = asked(ById(), id, *others, answer=CommandResult(1, "", f"{words}\n"))
        assert set(found.silent) == set(others), words


def test_very_many_ids_that_are_gone_cost_little() -> None:
    ids = [f"{number}.pbs1" for number in range(20_000)]
    began = time.process_time()
    found = asked(ById(), *ids, answer=CommandResult(1, "", "".join(f"no such job {id}\n" for id in ids[1:])))
    assert found.silent == ids[:1]
    assert time.process_time() - began < 5


def test_a_list_of_all_jobs_of_the_user_is_about_each_of_them() -> None:
    answer = CommandResult(0, "1 a\n")
    assert silent(asked(ByUser(), "1", "2", answer=answer), "1", "2") == []
    assert silent(asked(ById(), "1", "2", answer=answer, by_name=True), "1", "2") == []
    assert silent(asked(ById(), "1", "2", answer=answer), "1", "2") == ["2"]


def test_elements_of_an_array() -> None:
    found = asked(ById(), "1", "2", answer=CommandResult(0, "1 a .1\n1 a .2\n2 b\n"))
    assert not found.is_silent(("1", 3)), "that one is gone"
    assert found.is_silent(("2", 3)), "of this one only the array was reported"
    assert found.silent == []


@pytest.mark.parametrize("fault", [ValueError("x"), KeyError("name"), IndexError(), RecursionError(), TypeError("y")])
def test_a_translator_that_fails_costs_its_own_answer_alone(fault: Exception) -> None:
    class Broken(ByUser):
        def statuses(self, answer: CommandResult) -> list[NativeJob]:
            raise fault

        def accounted(self, answer: CommandResult) -> list[NativeJob]:
            raise fault

    with pytest.raises(CouldNotAsk, match=type(fault).__name__):
        asked(Broken(), "1", answer=CommandResult(0, "1 a\n"))
    with pytest.raises(CouldNotAsk, match=type(fault).__name__):
        accounted(Broken(), CommandResult(0, "1 a\n"))


def test_what_a_translator_says_of_unknown_jobs_may_fail_too() -> None:
    class Broken(ById):
        def unknown(self, answer: CommandResult, ids: Sequence[str], *, listed: bool) -> Sequence[str]:
            raise ValueError(re.escape("x"))

    with pytest.raises(CouldNotAsk, match="ValueError"):
        asked(Broken(), "1", answer=CommandResult(0, "1 a\n"))


def test_slurm_with_several_clusters() -> None:
    ids = ("1", "2;far", "3;near")
    command = StatusQuery(SLURM(), "hpc", ids).command
    assert command[:2] == ["sh", "-c"]
    assert re.search(r"^env \S+ squeue -a .*\nenv \S+ squeue -M far,near -a ", command[2], re.MULTILINE), command
    near, far = f"CLUSTER: near\n{TITLES}", f"CLUSTER: far\n{TITLES}"
    for answer, expected in (
        (TITLES + near, ["2;far"]),
        (near + far, ["1"]),
        (f"{TITLES}CLUSTER: far\n{near}", ["2;far"]),
        (f"{TITLES}CLUSTER: far\nslurm_load_jobs error: Unable to contact slurm controller\n{near}", ["2;far"]),
        (TITLES + far + near, []),
    ):
        assert silent(asked(SLURM(), *ids, answer=CommandResult(0, answer)), *ids) == expected, answer


def test_slurm_that_names_the_clusters_of_jobs_without_one() -> None:
    """As with SLURM_CLUSTERS in the environment of the login node."""
    row = "1|RUNNING|n1|None|a\n"
    found = asked(SLURM(), "1", "2", answer=CommandResult(0, f"CLUSTER: near\n{TITLES}{row}CLUSTER: far\n{TITLES}"))
    assert [job.id for job in found.jobs] == ["1"]
    assert silent(found, "1", "2") == []
    found = asked(SLURM(), "1", "2", answer=CommandResult(0, f"CLUSTER: near\n{TITLES}{row}CLUSTER: far\n"))
    assert (silent(found, "1", "2"), found.is_whole) == (["2"], False)
    both = CommandResult(0, f"CLUSTER: near\n{TITLES}{row}CLUSTER: far\n{TITLES}{row}")
    found = asked(SLURM(), "1;near", "1;far", answer=both)
    assert [job.id for job in found.jobs] == ["1;near", "1;far"]


def test_slurm_is_asked_for_lost_jobs_in_every_cluster_that_they_name() -> None:
    query = StatusQuery(SLURM(), "hpc", ["7", "8;near"], by_name=True, clusters={"near", "far"})
    assert re.search(r"^env \S+ squeue -a .*\nenv \S+ squeue -M far,near -a ", query.command[2], re.MULTILINE)
    near, far = f"CLUSTER: near\n{TITLES}", f"CLUSTER: far\n{TITLES}"
    for answer, whole in (
        (TITLES + near + far, ("near", "far")),
        (TITLES + far, ("far",)),
        (f"{TITLES}CLUSTER: near\n{far}", ("far",)),
        (f"CLUSTER: near\n{far}", ()),
        (near + far, ("near", "far")),
    ):
        found = query.read(CommandResult(0, answer))
        assert {each for each in ("near", "far") if found.are_whole([each])} == set(whole), answer
        assert found.are_whole(["near", "far"]) == (len(whole) == 2)
    alone = StatusQuery(SLURM(), "hpc", by_name=True).read(CommandResult(0, TITLES))
    assert (alone.are_whole([]), alone.are_whole(["far"])) == (True, False)


def test_slurm_with_equal_numbers_in_two_clusters() -> None:
    """A lost job of another cluster that has the number of a local job is not that job."""
    query = StatusQuery(SLURM(), "hpc", ["7"], by_name=True, clusters={"far"})
    rows = f"{TITLES}7|RUNNING|n1|None|a\nCLUSTER: far\n{TITLES}7|PENDING||Priority|lost\n"
    found = query.read(CommandResult(0, rows))
    assert {(job.id, job.name) for job in found.jobs} == {("7", "a"), ("7;far", "lost")}


def test_slurm_with_rows_that_are_cut() -> None:
    rows = f"{TITLES}1_[1,3,...]|PENDING||Priority|a\n2|RUNN\n4_2|RUNNING|n1|None|b\n"
    found = asked(SLURM(), "1", "2", "3", "4", answer=CommandResult(0, rows))
    assert silent(found, "1", "2", "3") == ["1", "2"]
    assert found.is_silent(("1", 2))
    assert not found.is_silent(("4", 3))


@pytest.mark.parametrize(
    ("shown", "name", "index", "expected"),
    [
        ("calc", "calc", None, True),
        ("calc", "calc ", None, True),
        (None, "calc", None, True),
        ("", "calc", None, True),
        ("calc", None, None, True),
        ("calc-3", "calc", 3, True),
        ("calc[3]", "calc", 3, True),
        ("calculat", "calculate", None, True),
        ("calculate", "calc", None, False),
        ("c", "calc", None, False),
        ("calcula", "calculate", None, False),
        ("calculates", "calculate", None, False),
        ("calc-3", "calc", None, False),
        ("calc-33", "calc", 3, False),
        ("calc-3", "calc", 33, False),
        ("other", "calc", None, False),
    ],
)
def test_a_job_of_another_name_is_another_job(
    shown: str | None, name: str | None, index: int | None, expected: bool
) -> None:
    job = NativeJob(id="7", index=index, name=shown, state="ended")
    assert is_called(job, name) is expected
    assert (Statuses([job]).get(("7", index), name) is not None) is expected
