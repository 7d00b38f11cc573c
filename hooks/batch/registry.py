"""What third parties add to Lading by an entry point of the group ``lading``, as far as hooks need it.

Everything built in comes the same way. What can be added at all: :mod:`lading.plugin.hookspecs`.
"""

from __future__ import annotations

from functools import cache

import pluggy

from lading.hooks.batch.system import BatchSystem

GROUP = "lading"


@cache
def extensions() -> pluggy.PluginManager:
    """The manager with everything that is installed; once per process."""
    manager = pluggy.PluginManager(GROUP)
    manager.load_setuptools_entrypoints(GROUP)
    return manager


def batch_systems(manager: pluggy.PluginManager | None = None) -> dict[str, BatchSystem]:
    """The batch systems by name, in the order in which they were offered; built-in ones first.

    :param manager: of the plugins that offer them; None: all that are installed
    :raises ValueError: two plugins offer the same name
    """
    systems: dict[str, BatchSystem] = {}
    # Pluggy calls what was registered last first.
    for offered in reversed((manager or extensions()).hook.batch_systems()):
        for system in offered:
            if system.name in systems and type(systems[system.name]) is not system:
                other = type(systems[system.name])
                raise ValueError(f"batch system {system.name!r} is offered by {other} and by {system}; remove one")
            systems[system.name] = system()
    return systems
