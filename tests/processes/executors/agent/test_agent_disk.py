"""A node agent on a disk that others fill as well."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

from lading.executors.agent.scratch import MIB
from lading.scheduling.model.resources import Resources
from tests.reasons import message_in
from tests.services.agent import NodeAgent

ENDLESS = 2**31 - 2  # what the store can hold, less one


def test_a_job_waits_for_disk_that_others_use_and_delays_no_other(tmp_path: Path) -> None:
    node = NodeAgent(tmp_path)
    node.configure(capacity=Resources(2, 1024, ENDLESS), patience=0, measure_disk=True)
    node.start()
    try:
        whole = shutil.disk_usage(tmp_path).total // MIB
        node.put("large", "succeed", Resources(2, 256, whole + 1), priority=9, queued_at=time.time() - 60)
        assert "disk is taken" in message_in(node.wait_for("large", "waiting"))
        for number in range(3):
            token = node.put(f"small{number}", "succeed", Resources(1, 256, 1))
            assert node.wait_for(token)["cause"] is None
        assert not node.events_of("large", "finished")
        node.put("never", "succeed", Resources(1, 256, ENDLESS + 1))
        assert "can never start" in str(node.wait_for("never")["reason"])
        node.configure(capacity=Resources(2, 1024, ENDLESS), patience=0)
        assert node.wait_for("large")["cause"] is None, "the size that a site declares is not measured"
    finally:
        node.stop()
        NodeAgent.clean_up()
