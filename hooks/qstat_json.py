"""What ``qstat -f -F json`` of PBS Pro and OpenPBS prints, which is not always JSON.

Known faults: numbers such as 007 and .5, and NaN, for names and variables that look like numbers
(https://github.com/openpbs/openpbs/issues/1255, /pull/2603); quotes and backslashes that are not escaped, or are
escaped where they must not be (/pull/830, /pull/2049); control characters; other lines around it (/issues/2541).
"""

from __future__ import annotations

import json
import re
from typing import Any

_MEMBER = re.compile(r'(\s*"(?:[^"\\]|\\.)*"\s*:\s*)(.*?)(,?)\s*')
_START = re.compile(r"^[ \t]*\{", re.MULTILINE)
_CLOSING = re.compile(r"\s*[}\]]+,?\s*")
_ESCAPE = re.compile(r'\\(?!["\\/bfnrt]|u[0-9A-Fa-f]{4})')


def documents(text: str) -> list[dict[str, Any]]:
    """The objects in a text; every number in them as it was written.

    :raises ValueError: there is none, or one is cut
    """
    lines = text.replace("\r\n", "\n").split("\n")
    start = next((number for number, line in enumerate(lines) if line.lstrip("\ufeff \t").startswith("{")), None)
    if start is None:
        raise ValueError("there is no JSON in it")
    whole = "\n".join(lines[start:]).lstrip("\ufeff \t")
    try:
        return _decoded(whole)
    except ValueError:
        return _decoded("\n".join(map(_mended, _joined(lines[start:]))).lstrip("\ufeff \t"))


def _decoded(text: str) -> list[dict[str, Any]]:
    decoder = json.JSONDecoder(strict=False, parse_int=str, parse_float=str, parse_constant=str)
    found, end = [], 0
    while match := _START.search(text, end):
        value, end = decoder.raw_decode(text, match.end() - 1)
        found.append(value)
    return found


def _joined(lines: list[str]) -> list[str]:
    """One line per member: what does not look like one goes on with the value of the one before."""
    result: list[str] = []
    for line in lines:
        whole = _MEMBER.fullmatch(line) or _CLOSING.fullmatch(line) or line.strip() in ("", "{")
        if whole or not result or _closed(result[-1]):
            result.append(line)
        else:
            result[-1] += f"\\n{line}"
    return result


def _closed(line: str) -> bool:
    return line.rstrip().endswith((",", "}", "{", "]", "["))


def _mended(line: str) -> str:
    """The line with a value that is JSON."""
    match = _MEMBER.fullmatch(line)
    if match is None or match[2] in ("{", "[", "{}", "[]"):
        return line
    head, value, comma = match.groups()
    try:
        json.loads(value, strict=False, parse_constant=_refused)
    except ValueError:
        if value.startswith("{") and value.endswith("}"):
            return line
        inner = value[1:-1] if len(value) > 1 and value[0] == value[-1] == '"' else value
        inner = inner.replace('\\"', '"')
        value = json.dumps(_ESCAPE.sub("", inner))
    return f"{head}{value}{comma}"


def _refused(constant: str) -> None:
    raise ValueError(constant)
