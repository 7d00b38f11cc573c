"""Batch systems that are registered by entry points of the group ``lading``.

The built-in ones are registered in the same way. For everything that third parties can add, see
:mod:`lading.plugin.hookspecs`.
"""

from __future__ import annotations

from functools import cache

import pluggy

from lading.hooks.batch.system import BatchSystem

GROUP = "lading"


@cache
def extensions() -> pluggy.PluginManager:
    manager = pluggy.PluginManager(GROUP)
    manager.load_setuptools_entrypoints(GROUP)
    return manager


def batch_systems(manager: pluggy.PluginManager | None = None) -> dict[str, BatchSystem]:
    """Return the batch systems by name, in the order of registration; built-in ones first.

    :param manager: the plugins to query; None: all installed ones
    :raises ValueError: two plugins register the same name
    """
    systems: dict[str, BatchSystem] = {}
    # Pluggy calls the implementation that was registered last first.
    for offered in reversed((manager or extensions()).hook.batch_systems()):
        for system in offered:
            if system.name in systems and type(systems[system.name]) is not system:
                other = type(systems[system.name])
                raise ValueError(f"batch system {system.name!r} is offered by {other} and by {system}; remove one")
            systems[system.name] = system()
    return systems
