"""``staged``: the path of a file staged for a task."""

from __future__ import annotations

import json
import os

from lading.hooks.files.addresses import INPUTS_VARIABLE, normal_path


def staged(address: object) -> str:
    """Return the path of a file that the hint ``stage`` has copied to this machine; call it in the task::

        @task(executor_config=resources(stage=["reads"]))
        def align(reads):
            with open(staged(reads)) as file: ...

    A file that was already here, or is not staged, keeps its path. Staged files are shared with other tasks and
    read-only.

    :param address: a path, an address such as ``s3://bucket/key``, or a CWL File
    :return: its path on this machine, or the given address
    """
    if isinstance(address, dict):
        address = address.get("path") or address.get("location")
    text = str(address)
    paths = json.loads(os.environ.get(INPUTS_VARIABLE, "{}"))
    return str(paths.get(text) or paths.get(normal_path(text)) or text)
