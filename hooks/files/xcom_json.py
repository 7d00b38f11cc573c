"""Results of tasks, read as plain JSON; no class that the data names is imported.

Airflow writes objects that are not JSON as ``{"__classname__": ..., "__version__": ..., "__data__": ...}`` (see
``airflow.sdk.serde``). Containers, assets and paths are understood; of any other object only the class is known.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

CLASS, DATA = "__classname__", "__data__"
# The keys that Airflow 2 used.
OLD_CLASS, OLD_DATA = "__type", "__var"

CONTAINERS = ("builtins.tuple", "builtins.set", "builtins.frozenset", "tuple", "set", "frozenset")
NUMBERS = ("decimal.Decimal", "numpy.")
ASSETS = ("airflow.sdk.definitions.asset.", "airflow.datasets.", "airflow.assets.")
PATHS = ("airflow.sdk.io.path.ObjectStoragePath", "airflow.io.path.ObjectStoragePath")
# Classes that cannot contain the address of a file.
NO_FILES = (
    "datetime.", "pendulum.", "zoneinfo.", "dateutil.", "uuid.", "airflow.sdk.definitions.asset.AssetAlias",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Unknown:
    """An input, or a part of one, that only the task itself can read.

    :param why: as text
    :param may_be_file: whether it may contain a file
    """

    why: str
    may_be_file: bool = True


def plain(value: Any) -> Any:
    """Convert a stored value to lists, dicts, text and numbers; objects that need a class become :class:`Unknown`."""
    if isinstance(value, list):
        return [plain(each) for each in value]
    if not isinstance(value, Mapping):
        return value
    for name, data in ((CLASS, DATA), (OLD_CLASS, OLD_DATA)):
        if name in value and (data in value or name == CLASS):
            return _of_class(str(value[name]), value.get(data))
    return {str(key): plain(each) for key, each in value.items()}


def _of_class(name: str, data: Any) -> Any:
    if name in CONTAINERS and isinstance(data, list):
        return plain(data)
    if name == "dict" and isinstance(data, Mapping):
        return {str(key): plain(each) for key, each in data.items()}
    if name.startswith(NUMBERS) and isinstance(data, (int, float)):
        return data
    if isinstance(data, Mapping):
        if name.startswith(ASSETS) and isinstance(uri := data.get("uri"), str):
            return uri
        if name in PATHS and isinstance(path := data.get("path"), str):
            scheme, separator, rest = path.partition("://")
            connection = data.get("conn_id")
            return f"{scheme}://{connection}@{rest}" if connection and separator and "@" not in rest else path
    why = f"it is or contains a {name}, which only the task can read; valid: JSON, tuples, sets, assets, paths"
    return Unknown(why, may_be_file=not name.startswith(NO_FILES))
