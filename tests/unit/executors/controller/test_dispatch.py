"""From what waits and what sites answered to what is to be done."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lading.executors.controller import dispatch
from lading.executors.controller.dispatch import (
    SECONDS_UNTIL_LOST,
    SECONDS_UNTIL_REPEATED,
    SECONDS_UNTIL_STRANGE,
    Absence,
    Given,
    Room,
    Waits,
    assign,
    lost,
    repeats,
    strangers,
)
from lading.executors.store.store import State
from lading.hooks.site import Place
from lading.scheduling.resources import Resources

NOW = 1000.0
MACHINE = Place("node1", Resources(cpus=4, memory=8192))


def waits(token: str, cpus: float = 1, site: str | None = None, reason: str | None = None) -> Waits:
    asked = Resources(cpus=cpus, memory=100)
    return Waits(name=token, resources=asked, queued_at=NOW, site_hint=site, reason=reason)


def given(token: str, state: State, expires_at: float | None = NOW + 600) -> Given:
    return Given(token, state, Resources(cpus=1, memory=100), "node1", expires_at, None)


def test_a_job_is_placed_at_the_first_site_unless_it_names_another() -> None:
    rooms = [Room("local", (MACHINE,), ()), Room("lab", (MACHINE,), ())]
    decision = assign([waits("a"), waits("b", site="lab")], rooms, ["local", "lab"], NOW)
    assert decision.placed == {"local": ("a",), "lab": ("b",)}
    assert [change.values["site"] for change in decision.changes] == ["local", "lab"]
    assert all(change.values["state"] == State.PLACED for change in decision.changes)


def test_a_job_without_a_site_goes_to_the_first_that_can_run_it() -> None:
    small = Place("node0", Resources(cpus=1, memory=8192))
    rooms = [Room("local", (small,), ()), Room("lab", (MACHINE,), ())]
    assert assign([waits("a", cpus=2)], rooms, ["local", "lab"], NOW).placed["lab"] == ("a",)


def test_a_job_that_fits_nowhere_waits_while_a_site_could_not_be_asked() -> None:
    decision = assign([waits("a", cpus=64)], [Room("local", (MACHINE,), ())], ["local", "lab"], NOW, {"lab": "down"})
    [change] = decision.changes
    assert change.values == {"reason": "waits: site 'lab' could not be asked: down"}


def typed(token: str, instance_type: str, cpus: float = 1) -> Waits:
    return replace(waits(token, cpus), instance_type=instance_type)


TYPED = (replace(MACHINE, instance_type="m7i.xlarge"), replace(MACHINE, name="node2", instance_type="c7i.xlarge"))


def test_an_instance_type_is_the_only_one_that_the_job_uses() -> None:
    """Also when its machines have all that they can run at once and in store, and the other type has room."""
    room = Room("lab", TYPED, ())
    tokens = [f"job{number:02}" for number in range(12)]
    decision = assign([typed(token, "c7i.xlarge") for token in tokens], [room], ["lab"], NOW)
    assert decision.placed["lab"] == tuple(tokens[:8])
    assert {change.values["location"] for change in decision.changes} == {"node2"}


def test_a_job_with_an_instance_type_goes_to_the_site_that_has_it() -> None:
    rooms = [Room("local", (MACHINE,), ()), Room("lab", TYPED, ())]
    assert assign([typed("a", "m7i.xlarge")], rooms, ["local", "lab"], NOW).placed["lab"] == ("a",)


def test_an_instance_type_that_no_machine_has_fails_the_job() -> None:
    [change] = assign([typed("a", "c5.large")], [Room("lab", TYPED, ())], ["lab"], NOW).changes
    assert change.values["state"] == State.FAILED
    words = "hint instance_type: 'c5.large' cannot be had, valid: c7i.xlarge, m7i.xlarge"
    assert change.values["reason"] == words
    [change] = assign([typed("a", "c5.large")], [Room("local", (MACHINE,), ())], ["local"], NOW).changes
    assert change.values["reason"].endswith("because no machine has been given an instance_type")


def test_a_job_that_is_too_large_for_its_instance_type_fails() -> None:
    large = replace(MACHINE, name="node3", capacity=Resources(cpus=64, memory=8192))
    [change] = assign([typed("a", "c7i.xlarge", cpus=9)], [Room("lab", (*TYPED, large), ())], ["lab"], NOW).changes
    assert "'node2' of site 'lab'" in change.values["reason"]


def test_an_unknown_site_fails_the_job_and_names_the_sites() -> None:
    decision = assign([waits("a", site="hpc")], [Room("local", (MACHINE,), ())], ["local"], NOW)
    [change] = decision.changes
    assert change.values["state"] == State.FAILED
    assert change.values["reason"] == "there is no site 'hpc'; the sites are: local"
    assert change.report


def test_a_job_that_never_fits_fails_with_what_is_lacking_and_holds_nobody_up() -> None:
    decision = assign([waits("huge", cpus=64), waits("a")], [Room("local", (MACHINE,), ())], ["local"], NOW)
    assert decision.placed["local"] == ("a",)
    [refused] = [change for change in decision.changes if change.token == "huge"]
    assert "64 cpus" in refused.values["reason"]
    assert refused.values["reason"].endswith("too little cpus")


def test_jobs_of_a_site_that_could_not_be_asked_wait_and_say_so() -> None:
    decision = assign([waits("a", site="lab", cpus=999)], [], ["local", "lab"], NOW, {"lab": "no route to host"})
    [change] = decision.changes
    assert change.values == {"reason": "waits: site 'lab' could not be asked: no route to host"}
    assert not any(decision.placed.values())


BROKEN = Place("node0", MACHINE.capacity, "the node agent does not stay up")


@pytest.mark.parametrize("how", ["in trouble", "silent", "silent from the start", "without locations"])
def test_a_site_in_trouble_is_waited_for_until_its_time_is_over(how: str) -> None:
    lab = Room("lab", (MACHINE,), ())
    first = Room("local", () if how == "without locations" else (BROKEN,) if how == "in trouble" else (MACHINE,), ())
    rooms = [lab] if how == "silent from the start" else [first, lab]
    silent = {"local": "a hiccup"} if how.startswith("silent") else {}
    decision = assign([waits("a")], rooms, ["local", "lab"], NOW, silent)
    assert not any(decision.placed.values())
    [change] = decision.changes
    assert str(change.values["reason"]).startswith("waits: site 'local' ")
    late = assign([waits("a"), waits("b", site="local")], rooms, ["local", "lab"], NOW, silent, late={"local"})
    assert (late.placed["lab"], late.placed.get("local", ())) == (("a",), ()), "who names it waits for it"


def test_where_all_that_can_run_a_job_are_in_trouble_it_waits_for_the_first() -> None:
    rooms = [Room("local", (BROKEN,), ()), Room("lab", (BROKEN,), ())]
    [change] = assign([waits("a")], rooms, ["local", "lab"], NOW, late={"local", "lab"}).changes
    assert "site 'local'" in change.values["reason"]


def test_a_job_without_a_site_goes_to_those_alone_that_take_it() -> None:
    rooms = [Room("local", (MACHINE,), ()), Room("hpc", (replace(MACHINE, capacity=Resources(64, 9999)),), ())]
    sites = ["local", "hpc"]
    decision = assign([waits("a"), waits("b", site="local")], rooms, sites, NOW, unnamed=["hpc"])
    assert decision.placed == {"hpc": ("a",), "local": ("b",)}
    [change] = assign([waits("a", cpus=9)], rooms, sites, NOW, unnamed=["local"]).changes
    assert change.values["state"] == State.FAILED
    assert str(change.values["reason"]).endswith(
        "only local may run tasks that name no site: name one of hpc with the hint site"
    )
    [change] = assign([waits("a")], rooms, sites, NOW, unnamed=[]).changes
    assert change.values["reason"] == (
        "it names no site; no site may run tasks that name no site: name one of local, hpc with the hint site"
    )


def test_a_location_in_trouble_takes_no_jobs_and_the_trouble_is_their_reason() -> None:
    broken = Place("node1", MACHINE.capacity, "the node agent does not stay up")
    room = Room("local", (broken,), ())
    [change] = assign([waits("a")], [room], ["local"], NOW).changes
    assert change.values == {"reason": "waits: site 'local' takes no jobs now: the node agent does not stay up"}
    assert not assign([waits("a", reason=change.values["reason"])], [room], ["local"], NOW).changes


def test_a_running_job_that_its_site_forgot_is_lost_but_not_at_once() -> None:
    jobs = [given("a", State.RUNNING)]
    assert not lost(jobs, {"a": SECONDS_UNTIL_LOST - 1}, NOW)
    [change] = lost(jobs, {"a": SECONDS_UNTIL_LOST + 1}, NOW)
    assert (change.values["state"], change.values["cause"]) == (State.FAILED, "lost")


def test_absence_is_timed_by_a_clock_that_never_jumps(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr(dispatch.time, "monotonic", lambda: clock[0])
    absence = Absence()
    assert absence.look(["a", "b"]) == {"a": 0.0, "b": 0.0}
    clock[0] += 20
    assert absence.look(["a"]) == {"a": 20.0}
    clock[0] += 20
    assert absence.look(["a", "b"]) == {"a": 40.0, "b": 0.0}, "b turned up in between"


def test_a_job_that_the_store_does_not_want_is_ended_after_a_while() -> None:
    assert list(strangers({"new": 1.0, "old": SECONDS_UNTIL_STRANGE + 1})) == ["old"]


def test_a_placed_job_that_did_not_arrive_is_given_again() -> None:
    jobs = [given("a", State.PLACED), given("b", State.RUNNING)]
    assert repeats(jobs, {"a": SECONDS_UNTIL_REPEATED - 1, "b": 99.0}, NOW) == []
    assert repeats(jobs, {"a": SECONDS_UNTIL_REPEATED + 1, "b": 99.0}, NOW) == ["a"]


def test_a_waiting_job_gets_a_fresh_jwt_before_the_old_one_runs_out() -> None:
    jobs = [given("fresh", State.PLACED, NOW + 600), given("old", State.PLACED, NOW + 100)]
    assert repeats(jobs, {}, NOW + 300) == ["old"]


QUEUE = Place("hpc", Resources(cpus=8, memory=8192), max_jobs=3)


def test_a_queue_takes_its_number_of_jobs_however_large_in_sum() -> None:
    given_already = [replace(given("x", State.RUNNING), location="hpc")]
    jobs = [waits(name, cpus=8) for name in "abc"]
    decision = assign(jobs, [Room("hpc", (QUEUE,), tuple(given_already))], ["hpc"], NOW)
    assert decision.placed == {"hpc": ("a", "b")}
    [rest] = [change for change in decision.changes if change.token == "c"]
    assert rest.values == {"reason": "waits: site 'hpc' has 3 jobs already (max_jobs)"}


def test_only_a_batch_site_takes_a_job_with_hints_for_a_batch_system() -> None:
    batch = replace(QUEUE, is_batch=True)
    rooms = [Room("local", (MACHINE,), ()), Room("hpc", (batch,), ())]
    native = replace(waits("a"), is_native=True)
    assert assign([native], rooms, ["local", "hpc"], NOW).placed["hpc"] == ("a",)
    decision = assign([native, replace(native, name="b", site_hint="local")], rooms[:1], ["local"], NOW)
    assert not decision.placed["local"]
    assert {change.values["state"] for change in decision.changes} == {State.FAILED}
    assert "are for a batch system, which 'local' is not" in str(decision.changes[0].values["reason"])


def test_only_a_site_of_batch_jobs_takes_a_job_with_nodes() -> None:
    allocations, jobs = replace(QUEUE, is_batch=True), replace(QUEUE, is_batch=True, takes_layouts=True)
    rooms = [Room("local", (MACHINE,), ()), Room("packed", (allocations,), ()), Room("hpc", (jobs,), ())]
    names = ["local", "packed", "hpc"]
    wide = [replace(waits(name, cpus=8), has_layout=True) for name in "abcd"]
    assert assign(wide, rooms, names, NOW).placed["hpc"] == ("a", "b", "c"), "each counts as one of max_jobs"
    decision = assign(wide[:1], rooms[:2], names[:2], NOW)
    assert "nodes, ppn and threads are for a batch site with mode = 'job'" in str(decision.changes[0].values["reason"])
    assert assign([replace(wide[0], site_hint="packed")], rooms, names, NOW).changes[0].values["state"] == State.FAILED


def test_a_job_must_fit_a_node_of_a_queue() -> None:
    [change] = assign([waits("a", cpus=9)], [Room("hpc", (QUEUE,), ())], ["hpc"], NOW).changes
    assert change.values["state"] == State.FAILED


def test_a_location_of_short_jobs_is_given_many_in_store() -> None:
    """It would run dry before the next tick; but the next ones may be long, so there is a limit."""
    jobs = [waits(f"job{number:02}", cpus=4) for number in range(20)]
    running = (given("runs", State.RUNNING), given("runs too", State.RUNNING))

    def stored(ahead: int) -> int:
        room = Room("local", (MACHINE,), running, {"node1": ahead, "elsewhere": 99})
        return len(assign(jobs, [room], ["local"], NOW).placed["local"])

    assert [stored(ahead) for ahead in (0, 2, 3, 4, 99)] == [1, 2, 3, 4, 4]


def test_what_was_not_looked_at_is_not_overtaken() -> None:
    """Of the shape of ``a`` more wait than were looked at, and ``b`` would come behind all of them."""
    two = (replace(MACHINE, instance_type="m"), replace(MACHINE, name="node2", instance_type="c"))
    first = replace(waits("a"), priority=2, hides_more=True, instance_type="m")
    jobs = [first, replace(waits("b"), is_ahead=True), replace(waits("c"), is_ahead=True, instance_type="c")]

    def placed(*jobs: Waits) -> tuple[str, ...]:
        return assign(jobs, [Room("lab", two, ())], ["lab"], NOW).placed["lab"]

    assert placed(*jobs[::2]) == ("a", "c"), "on a location that is not for the others"
    assert placed(replace(first, instance_type=None), *jobs[1:]) == ("a",)
    assert placed(replace(first, resources=Resources(cpus=4, memory=9000), instance_type=None), *jobs[1:]) == ("b", "c")
    assert placed(replace(first, hides_more=False), *jobs[1:]) == ("a", "b", "c")
