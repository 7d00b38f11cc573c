"""``staged``: where the files lie that were brought for a task."""

from __future__ import annotations

import json
import os

from lading.hooks.files.addresses import INPUTS_VARIABLE, normal_path


def staged(address: object) -> str:
    """Where a file lies that the task's hint ``stage`` has had brought, to be called in the task::

        @task(executor_config=resources(stage=["reads"]))
        def align(reads):
            with open(staged(reads)) as file: ...

    What was there already, or was not to be brought, is where it was. What was brought is shared with other tasks and
    cannot be written to.

    :param address: a path, an address such as ``s3://bucket/key``, or a CWL File
    :return: its path here, or what was given
    """
    if isinstance(address, dict):
        address = address.get("path") or address.get("location")
    text = str(address)
    paths = json.loads(os.environ.get(INPUTS_VARIABLE, "{}"))
    return str(paths.get(text) or paths.get(normal_path(text)) or text)
