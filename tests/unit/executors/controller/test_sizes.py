"""What machines really have, in the store: any controller of the site reads it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from lading.executors import store
from lading.executors.controller.launched import Launched
from lading.executors.store import capacity as capacities
from lading.hooks.site import LocationState, Observation, ObservedLocation
from lading.scheduling.matching.market import MachineMarket
from lading.scheduling.model.catalogue import bundled
from lading.scheduling.model.job import PlannedJob
from lading.scheduling.model.location import Location
from lading.scheduling.model.reasons import because
from lading.scheduling.model.resources import Resources

MARKET = MachineMarket(bundled().select(["m5.large", "m6g.large"]), images={"x86_64": "ami-1", "aarch64": "ami-2"})
REAL = Resources(2.0, 7400, 8000, 0.0)


@pytest.fixture
def session() -> Session:
    engine = create_engine("sqlite://")
    store.metadata.create_all(engine)
    return Session(engine)


def seen(name: str, state: LocationState = LocationState.UP, size: Resources = REAL) -> ObservedLocation:
    return ObservedLocation(Location(name, size, instance_type="m5.large", arch="x86_64"), state)


def capacity(market: MachineMarket, kind: str = "m5.large") -> Resources:
    return market.catalogue.types[kind].capacity


def test_what_was_seen_at_a_boot_counts_for_each_controller_from_then_on(session: Session) -> None:
    here = Launched("cloud")
    assert here.measured(session, Observation([seen("a", LocationState.BOOTING)], market=MARKET)) == {}
    known = here.measured(session, Observation([seen("a")], market=MARKET))
    assert known == {("m5.large", "ami-1"): REAL}
    session.commit()
    elsewhere = Launched("cloud").measured(session, Observation([], market=MARKET))
    assert elsewhere == known
    assert Launched("other").measured(session, Observation([], market=MARKET)) == {}
    sized = MARKET.sized(elsewhere)
    assert capacity(sized) == REAL
    assert capacity(sized, "m6g.large") == capacity(MARKET, "m6g.large")
    assert replace(MARKET, images={"x86_64": "ami-3"}).sized(elsewhere).catalogue == MARKET.catalogue, "another image"


def test_the_machine_that_booted_last_counts_and_those_that_are_up_change_nothing(session: Session) -> None:
    here, smaller = Launched("cloud"), replace(REAL, memory=7300)
    here.measured(session, Observation([seen("a")], market=MARKET))
    for _ in range(2):  # two that differ do not change it in turns
        assert here.measured(session, Observation([seen("a"), seen("b", size=smaller)], market=MARKET)) == {
            ("m5.large", "ami-1"): smaller
        }


def test_a_machine_of_another_image_says_nothing_of_the_one_that_is_launched_now(session: Session) -> None:
    """Such are still there when an image was replaced; without a driver, say, that the new one has."""
    by_image = {image: replace(seen(str(image)), image=image) for image in ("ami-0", "ami-1", None)}
    for images, known in (({"x86_64": "ami-1"}, "ami-1"), ({"x86_64": "ami-1 0a1b2c3d"}, "ami-1 0a1b2c3d")):
        market = replace(MARKET, images=images)
        for image, counts in (("ami-0", False), ("ami-1", True), (None, True)):
            here = Launched(f"{known} {image}")
            found = here.measured(session, Observation([by_image[image]], market=market))
            assert found == ({("m5.large", known): REAL} if counts else {})
    here = Launched("replaced")
    here.measured(session, Observation([by_image["ami-0"]], market=replace(MARKET, images={"x86_64": "ami-0"})))
    assert ("m5.large", "ami-1") not in here.measured(session, Observation([by_image["ami-0"]], market=MARKET))


def test_a_name_that_no_column_takes_is_not_kept(session: Session) -> None:
    capacities.keep_sizes(session, "cloud", {("m5.large", "/" + "x" * 300): REAL}, 0.0)
    assert capacities.sizes(session, "cloud") == {}


IMAGES = {"x86_64": "ami-1", "aarch64": "ami-2"}
GPUS = MachineMarket(bundled().select(["g4dn.*", "g5.xlarge", "p5.48xlarge", "g5g.xlarge", "m5.large"]), images=IMAGES)


def test_an_image_without_a_driver_gives_no_type_of_it_a_gpu() -> None:
    no_gpu = Resources(4.0, 15_000, 8000, 0.0)
    found = GPUS.sized({("g4dn.xlarge", "ami-1"): no_gpu})
    assert {name for name, kind in found.catalogue.types.items() if kind.capacity.gpus} == {"g5g.xlarge"}, "of ami-2"
    assert found.without_gpus == {"ami-1"}
    reason = found.why_not(PlannedJob("j", Resources(1, 1024, gpus=1)), because("no_machines"))
    assert str(reason).startswith("the image (ami-1) has no GPU driver")
    assert "with `boot_script`" in str(reason)
    assert str(reason).endswith("; it has no place to run: there is no location and no instance type")
    assert reason.code == "no_driver"
    assert found.why_not(PlannedJob("j", Resources(1, 1024)), because("no_machines")) == because("no_machines")
    assert capacity(
        replace(GPUS, images={"x86_64": "ami-3"}).sized({("g4dn.xlarge", "ami-1"): no_gpu}), "g5.xlarge"
    ).gpus


def test_one_type_without_a_gpu_among_others_that_have_them_is_no_fault_of_the_image_but_two_are() -> None:
    none, one = Resources(4.0, 15_000, 8000, 0.0), Resources(4.0, 15_000, 8000, 1.0)
    known = {("g4dn.xlarge", "ami-1"): one, ("g5.xlarge", "ami-1"): none}
    found = GPUS.sized(known)
    assert (capacity(found, "g5.xlarge").gpus, capacity(found, "p5.48xlarge").gpus) == (0, 8)
    found = GPUS.sized({**known, ("g4dn.2xlarge", "ami-1"): none})
    assert (capacity(found, "g4dn.xlarge").gpus, capacity(found, "p5.48xlarge").gpus) == (1, 0)


def test_a_root_volume_that_is_smaller_than_it_was_taken_for_is_so_on_all_types() -> None:
    market = replace(MARKET, catalogue=bundled().select(["m5.*large", "c5.large", "m5d.large"]).with_ebs(8192))
    found = market.sized({("m5.large", "ami-1"): replace(REAL, disk=5000)})
    assert {capacity(found, each).disk for each in ("m5.large", "m5.xlarge", "c5.large")} == {5000}
    assert capacity(found, "m5d.large").disk > 60_000, "it has a disk of its own"


def test_instance_storage_that_nothing_mounts_is_not_counted_on_after_one_machine() -> None:
    market = replace(MARKET, catalogue=bundled().select(["m5d.*"]))
    found = market.sized({("m5d.large", "ami-1"): REAL})
    assert {kind.capacity.disk for kind in found.catalogue.types.values()} == {REAL.disk}
