"""The files among a job's inputs that are brought to where it runs, as its hint ``stage`` names the inputs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from lading.executors.sizing.file_sizes import MOST_INPUTS, named_files
from lading.executors.sizing.xcom_json import Unknown
from lading.hooks.files.addresses import normal_path
from lading.scheduling.hints.expressions import ExpressionError
from lading.scheduling.hints.hints import HintError, Hints


def staged(hints: Hints, inputs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The columns of a job whose files are brought to where it runs: their addresses, and where they lie there.

    :param inputs: by name; of several jobs where it is a chunk of a scatter
    :raises HintError: it has no such input, or too many files
    :raises ExpressionError: one of them is not known
    """
    found: dict[str, None] = {}
    for values in inputs:
        for name in hints.stage:
            if name not in values:
                raise HintError(f"hint stage: there is no input {name!r}; valid: {', '.join(values) or 'none'}")
            if isinstance(value := values[name], Unknown):
                raise ExpressionError(f"input {name!r}, whose files are to be staged, is not known: {value.why}")
            for address, _ in named_files(value, schemes=None):
                found[normal_path(address) or address] = None
    if len(found) > MOST_INPUTS:
        raise HintError(f"hint stage: the inputs name {len(found)} files; valid: at most {MOST_INPUTS}")
    return {"stage": json.dumps(found)} if found else {}
