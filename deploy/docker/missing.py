"""Print the lock's entries, with their hashes, for the dependencies of a package that this Python lacks.

    python missing.py requirements.lock 'airflow-lading[aws]' > missing.txt

The package itself must be installed, without its dependencies. The dependencies of a missing package are only known
once that package is installed. So install the printed entries, and repeat until nothing is printed.

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
    """Return the names of direct and indirect dependencies that are not installed."""
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
    """Return the entries of packages in a lock. A package can have several, for different versions of Python.

    :raises SystemExit: the lock has no entry for a package
    """
    found: defaultdict[str, str] = defaultdict(str)
    for each in re.split(r"^(?=\w)", lock, flags=re.MULTILINE):
        found[canonicalize_name(re.split(r"[ =@]", each)[0])] += each
    if absent := sorted(names - found.keys()):
        raise SystemExit(f"the lock has no entry for {', '.join(absent)}")
    return "".join(found[name] for name in sorted(names))


if __name__ == "__main__":
    print(entries(Path(sys.argv[1]).read_text(), missing(sys.argv[2])), end="")
