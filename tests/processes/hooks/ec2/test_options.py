"""Options of a table that change how a machine is made and reached."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from lading.hooks.site import LocationState
from tests.clusters.driven import asked
from tests.clusters.ec2_drive import Drive
from tests.services.ec2 import FakeEC2
from tests.services.execution_api import ExecutionApi
from tests.services.sshd import Sshd


def test_a_machine_of_an_ssm_parameter_behind_a_jump_host_that_boots_and_is_ready_in_time(
    make: Callable[..., Drive], service: FakeEC2, api: ExecutionApi, tmp_path: Path
) -> None:
    service.make("ssm").put_parameter(Name="/lading/image", Value=service.ami["x86_64"], Type="String")
    installed, allowed = service.folder / "installed", service.folder / "allowed"
    with Sshd() as jump:
        drive = make(
            ami={"x86_64": "/lading/image"},
            jump_host=f"-F {jump.client_config} site",
            api="tunnel",
            boot_script=f"echo by $(id -un) > {installed}",
            readiness_probe=f"test -e {allowed} && grep -q . {installed}",
        )
        [name] = drive.order()
        drive.answered()
        drive.until(lambda _: any("the probe fails" in str(each.note) for each in drive.last.locations))
        assert drive.look()[name] is LocationState.BOOTING
        allowed.touch()
        drive.until(lambda states: states[name] is LocationState.UP)
        assert installed.read_text() == "by root\n"
        [described] = service.client.describe_instances(InstanceIds=service.living())["Reservations"][0]["Instances"]
        assert described["ImageId"] == service.ami["x86_64"]
        assert jump.accepted > 0
        before = asked(api)
        [end] = drive.wait_for("finished", *drive.give(name))
        assert (end["cause"], asked(api) - before) == (None, 1)
        drive.site.close("cancel", 30)
    assert service.living() == []


def test_a_machine_is_reached_at_its_public_address_which_is_paid_for(
    make: Callable[..., Drive], service: FakeEC2
) -> None:
    drive = make(address="public")
    [name] = drive.up()
    [end] = drive.wait_for("finished", *drive.give(name))
    assert end["cause"] is None
    [machine] = (each for each in drive.site.fleet.machines.values() if each.instance is not None)
    assert machine.connection is not None
    assert str(machine.instance.public).startswith("127.78.")
    assert machine.connection.machine.transport.server.host == machine.instance.public
    assert dict(machine.surcharges)["public IPv4"] == 0.005
