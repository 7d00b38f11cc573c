"""What is known of a machine, and the file that keeps it over a restart of the controller."""

from __future__ import annotations

import json
import threading
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from lading.hooks.files.json_model import Text, Written, checked, parsed
from lading.hooks.files.safe_files import NotReadable, read_regular, write_atomically
from lading.hooks.spool.events import Amounts
from lading.scheduling.resources import Resources

MOST_BYTES = 2**16


class FactsFile(Written):
    """What was known of a machine, as a controller has kept it."""

    host: Text
    boot_id: Text
    arch: Text
    os: Text
    capacity: Amounts


@dataclass(frozen=True, slots=True)
class MachineFacts:
    """What a machine has, since its last start.

    :param host: its name, as it calls itself
    :param boot_id: of this start
    :param arch: of its processors, as ``uname -m`` says
    :param os: as ``uname -s`` says, in small letters
    :param capacity: what jobs may fill
    """

    host: str
    boot_id: str
    arch: str
    os: str
    capacity: Resources


def load(file: Path) -> MachineFacts | None:
    """What was known before this process began; None: nothing."""
    with suppress(OSError, NotReadable, ValueError):
        found = checked(FactsFile, parsed(read_regular(file, MOST_BYTES)))
        amounts = found.pop("capacity")
        return MachineFacts(**found, capacity=Resources(amounts.cpus, amounts.memory, amounts.disk, amounts.gpus))
    return None


def save(file: Path, facts: MachineFacts) -> None:
    """:raises OSError: it cannot be written"""
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_atomically(file, json.dumps(asdict(facts)))


class Residents:
    """Which machine each place of this process leads to: what one has must not be filled twice.

    The threads of all machines may call it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._places: dict[str, tuple[str, bool]] = {}

    def enter(self, place: str, boot_id: str, *, is_bounded: bool) -> str | None:
        """Note where a place leads to; why that cannot be; None: it can.

        :param place: a site and its connection
        :param is_bounded: whether its table says how much of the machine may be filled
        """
        with self._lock:
            for other, (its, bounded) in self._places.items():
                if other != place and its == boot_id and not (is_bounded and bounded):
                    return (
                        f"it is the same machine as {other}, and what it has would be filled twice: keep one of them, "
                        "or give both `cpus` and `memory`"
                    )
            self._places[place] = boot_id, is_bounded
            return None

    def leave(self, place: str) -> None:
        """It is not used any more."""
        with self._lock:
            self._places.pop(place, None)


RESIDENTS = Residents()
