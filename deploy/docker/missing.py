"""Print the entries of a lock, with their hashes, for what a package needs and this Python lacks.

    python missing.py requirements.lock 'airflow-lading[aws]' > missing.txt

The package is installed already, without its dependencies. What a missing one needs in turn is known once that is
installed, so repeat until nothing is printed.

Checked: tests/unit/deploy.
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


def missing(package: str) -> set[str]:
    """The names of what a package needs and of what that needs, as far as it is not installed."""
    found, seen, waiting = set(), set(), [Requirement(package)]
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        for extra in ("", *requirement.extras):
            if (name, extra) in seen:
                continue
            seen.add((name, extra))
            try:
                needed = [Requirement(text) for text in requires(name) or ()]
            except PackageNotFoundError:
                found.add(name)
                continue
            waiting += [each for each in needed if each.marker is None or each.marker.evaluate({"extra": extra})]
    return found


def entries(lock: str, names: set[str]) -> str:
    """The entries of these packages in a lock. One that has several, for different versions of Python, keeps them all.

    :raises SystemExit: it has none for one of them
    """
    found: defaultdict[str, str] = defaultdict(str)
    for each in re.split(r"^(?=\w)", lock, flags=re.MULTILINE):
        found[canonicalize_name(re.split(r"[ =@]", each)[0])] += each
    if absent := sorted(names - found.keys()):
        raise SystemExit(f"the lock has no entry for {', '.join(absent)}")
    return "".join(found[name] for name in sorted(names))


if __name__ == "__main__":
    print(entries(Path(sys.argv[1]).read_text(), missing(sys.argv[2])), end="")
