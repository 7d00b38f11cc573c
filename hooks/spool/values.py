"""The values that files of a spool contain, and their checks: events, and what describes a job or an allocation."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Annotated, Any, cast

from lading.hooks.files.json_model import Longest, Matching, ReadWith, Within
from lading.hooks.spool.tokens import TOKEN
from lading.scheduling.model.reasons import Reason, because, free_text

# The year 3000, in seconds since the epoch: some databases and calendars refuse later dates.
LATEST = 32_503_680_000.0
# The maximum of the databases' INTEGER.
LARGEST_INTEGER = 2**31 - 1


def reason_of(reported: object) -> Reason | None:
    """Read a reason from plain data, or from a third party's text; None: none is given.

    It may lack parameters that another version does not write, so that the end of a job is never lost over them.

    :raises ValueError: it is neither
    """
    if isinstance(reported, str):
        return free_text(reported) if reported.strip() else None
    if reported is None or isinstance(reported, Reason):
        return reported
    return Reason.of_data(cast("dict[str, Any]", reported), is_whole=False)


def asked_reason(text: str) -> Reason:
    """Read the reason for a cancellation from the request in the spool."""
    try:
        return Reason.of_json(text)
    except (ValueError, RecursionError):  # text of a third party
        return reason_of(text) or because("cancelled")


def to_json(event: Mapping[str, Any]) -> str:
    """Return an event, or the content of another file of a job, as a line of JSON."""
    return json.dumps(event, default=Reason.to_data)


def _reason(reported: object) -> Reason:
    if isinstance(reported, Mapping):
        return Reason.of_data(reported)
    if (reason := reason_of(reported)) is None:
        raise ValueError("a reason is expected")
    return reason


# A reason with all parameters of its code; and an optional reason for an end.
WholeReason = Annotated[Reason, ReadWith(_reason)]
Why = Annotated[Reason | None, ReadWith(reason_of)]
Token = Annotated[str, Matching(TOKEN)]
Name = Annotated[str, Longest(1000)]
Date = Annotated[float, Within(0, LATEST)]
Cause = Annotated[str, Matching(re.compile("[a-z_]{1,20}"))]
ExitCode = Annotated[int, Within(-LARGEST_INTEGER, LARGEST_INTEGER)]
Memory = Annotated[int, Within(0, LARGEST_INTEGER)]
Amount = Annotated[int | float, Within(0, LARGEST_INTEGER)]
Seconds = Annotated[float, Within(0, LATEST)]
# Sizes of files in bytes, by path.
Outputs = Annotated[
    dict[Annotated[str, Longest(4096), Matching(re.compile("/.*", re.DOTALL))], Annotated[int, Within(0, 2**62)]],
    Longest(100),
]
Limit = Annotated[int | float, Within(0, LATEST)]
