"""Tags by which AWS says who is charged for a machine."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from lading.hooks.ec2 import cost_tags
from lading.hooks.ec2.client import EC2, AWSTrouble, EC2Error, EC2Instance
from lading.hooks.ec2.config import EC2Config
from lading.hooks.ec2.cost_tags import CostTags
from lading.hooks.site import Tenancy
from tests.services.ec2 import FakeEC2


@pytest.fixture(scope="module")
def service() -> Iterator[FakeEC2]:
    with FakeEC2() as service:
        yield service


class Site:
    """Machines that were launched, and how often AWS is asked to tag any."""

    def __init__(self, service: FakeEC2, number: int, **options: Any) -> None:
        table = {"work_dir": "/var/lading", "python": "/usr/bin/python3", "subnets": list(service.subnets.values())}
        self.config = EC2Config.model_validate({"kind": "ec2", "ami": service.ami, **table, **options})
        self.service, self.ec2 = service, EC2(self.config, lambda name, *_: service.make(name))
        subnet, image = next(iter(service.subnets.values())), service.ami["x86_64"]
        launched = self.ec2.reader.run_instances(
            ImageId=image, InstanceType="m5.large", SubnetId=subnet, MinCount=number, MaxCount=number
        )["Instances"]
        self.ids = [each["InstanceId"] for each in launched]
        self.machines = {f"L{index}": self.machine(f"L{index}", id) for index, id in enumerate(self.ids)}
        complaints = logging.getLogger(__name__)
        state: Any = SimpleNamespace(ec2=self.ec2, machines=self.machines, config=self.config, complaints=complaints)
        self.tags = CostTags(state)
        self.asked: list[tuple[list[str], dict[str, str]]] = []
        self.gone = ""
        tag = self.ec2.tag

        def counted(ids: Any, tags: Any) -> None:
            self.asked.append((list(ids), dict(tags)))
            if self.gone in ids:  # the double takes any id
                raise EC2Error(AWSTrouble.PERMANENT, "InvalidInstanceID.NotFound", f"there is no {self.gone}")
            tag(ids, tags)

        self.ec2.tag = counted  # type: ignore[method-assign]

    @staticmethod
    def machine(name: str, id: str, **tags: str) -> Any:
        facts = {"kind": "m5.large", "zone": "us-east-1a", "state": "running", "capacity_type": "spot", "index": 0}
        instance = EC2Instance(id, private=None, public=None, tags=tags, reason="", **facts)  # type: ignore[arg-type]
        return SimpleNamespace(name=name, instance=instance)

    def update(self, **tenants: Tenancy) -> None:
        self.tags.tenants = tenants
        self.tags.update()

    def shown(self, id: str) -> dict[str, str]:
        """What a bill can be split by, as AWS has it."""
        found = self.ec2.reader.describe_tags(Filters=[{"Name": "resource-id", "Values": [id]}])["Tags"]
        return {each["Key"]: each["Value"] for each in found if each["Key"] in (cost_tags.TEAM, cost_tags.DAG)}


@pytest.fixture
def site(service: FakeEC2) -> Iterator[Site]:
    found = Site(service, 3)
    yield found
    service.allow()
    found.ec2.reader.terminate_instances(InstanceIds=found.ids)


def test_a_machine_has_the_team_and_the_dag_of_its_jobs_until_others_use_it(site: Site) -> None:
    one, other, unused = site.ids
    site.update(L0=Tenancy("genes", "reads"), L1=Tenancy("genes", "reads"))
    both = {"lading:team": "genes", "lading:dag": "reads"}
    assert site.asked == [([one, other], both)], "alike ones by one request"
    assert (site.shown(one), site.shown(other), site.shown(unused)) == (both, both, {})
    site.update(L0=Tenancy("genes", "reads"), L1=Tenancy("genes", "shared"))
    site.update(L0=Tenancy("genes", "reads"), L1=Tenancy("genes", "shared"))
    assert site.asked[1:] == [([other], {"lading:team": "genes", "lading:dag": "shared"})], "only what has changed"
    assert site.shown(other) == {"lading:team": "genes", "lading:dag": "shared"}


def test_what_has_its_tags_from_an_earlier_controller_is_left_alone(site: Site) -> None:
    tags = {"lading:team": "genes", "lading:dag": "reads"}
    site.machines["L0"] = site.machine("L0", site.ids[0], **tags)
    site.update(L0=Tenancy("genes", "reads"), L1=Tenancy(None, None))
    assert site.asked == []


def test_a_refusal_is_noted_and_holds_up_nothing(site: Site) -> None:
    site.service.refuse("unauthorized", action="CreateTags")
    site.update(L0=Tenancy("genes", "reads"))
    assert site.tags.refused is not None
    assert "cost allocation" in site.tags.refused
    site.update(L0=Tenancy("genes", "reads"))
    assert len(site.asked) == 1, "it is asked again after a while"
    site.service.allow()
    site.tags._due.clear()
    site.update(L0=Tenancy("genes", "reads"))
    assert site.tags.refused is None
    assert site.shown(site.ids[0]) == {"lading:team": "genes", "lading:dag": "reads"}


def test_a_machine_that_is_refused_leaves_the_others_their_tags(site: Site) -> None:
    gone = "i-0123456789abcdef0"
    site.gone = gone
    site.machines["L3"] = site.machine("L3", gone)
    tenants = {f"L{number}": Tenancy("genes", "reads") for number in range(4)}
    for _ in range(3):
        site.update(**tenants)
    tags = {"lading:team": "genes", "lading:dag": "reads"}
    assert [site.shown(id) for id in site.ids] == [tags] * 3
    assert [ids for ids, _ in site.asked] == [[*site.ids, gone], *([id] for id in site.ids), [gone]]
    assert site.tags.refused is not None
    assert gone in site.tags.refused
    site.update(L0=Tenancy("genes", "shared"), L1=Tenancy("genes", "shared"), L3=Tenancy("genes", "shared"))
    assert site.asked[-1][0] == site.ids[:2], "together again"
    del site.machines["L3"]
    site.update(**tenants)
    assert site.tags.refused is None


def test_it_can_be_turned_off(service: FakeEC2) -> None:
    site = Site(service, 1, cost_tags=False)
    site.update(L0=Tenancy("genes", "reads"))
    assert site.asked == []
    site.ec2.reader.terminate_instances(InstanceIds=site.ids)
