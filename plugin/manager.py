"""The plugin manager, with the built-in plugins and those of third parties."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any, TypeVar

import pluggy

from lading.hooks.batch import registry
from lading.hooks.batch.system import BatchSystem
from lading.hooks.cluster.site import cluster_kind
from lading.hooks.site import Site
from lading.plugin import hookspecs
from lading.scheduling.matching.bindings import GetTargets
from lading.scheduling.matching.rules import Relax
from lading.scheduling.placing.policies import BUILT_IN, Policy

T = TypeVar("T")


@cache
def plugin_manager() -> pluggy.PluginManager:
    """Return the manager with all plugins loaded and checked against the hookspecs; one per process."""
    manager = registry.extensions()
    manager.add_hookspecs(hookspecs)
    manager.check_pending()
    return manager


def site_kinds() -> dict[str, type[Site[Any]]]:
    """Return the kinds of sites by name. Each batch system is a kind.

    :raises ValueError: two plugins offer the same kind
    """
    kinds: dict[str, type[Site[Any]]] = {name: cluster_kind(system) for name, system in batch_systems().items()}
    for offered in plugin_manager().hook.site_kinds():
        for kind in offered:
            if kind.kind in kinds and kinds[kind.kind] is not kind:
                raise ValueError(f"site kind {kind.kind!r} is offered by {kinds[kind.kind]} and by {kind}; remove one")
            kinds[kind.kind] = kind
    return kinds


def batch_systems() -> dict[str, BatchSystem]:
    """Return the batch systems by name, in the order of registration, built-in ones first.

    :raises ValueError: two plugins offer the same name
    """
    return registry.batch_systems(plugin_manager())


def binding_filters() -> dict[str, GetTargets]:
    """Return the binding filters by name.

    :raises ValueError: two plugins offer the same name
    """
    return _by_name("binding filter", plugin_manager().hook.binding_filters())


def rules() -> dict[str, Relax]:
    """Return the rules of third parties by name.

    :raises ValueError: two plugins offer the same name
    """
    return _by_name("rule", plugin_manager().hook.rules())


def policies() -> dict[str, Policy]:
    """Return the policies of third parties by name.

    :raises ValueError: two plugins offer the same name, or one offers that of a built-in policy
    """
    found: dict[str, Policy] = _by_name("policy", plugin_manager().hook.policies())
    if taken := sorted(found.keys() & set(BUILT_IN)):
        raise ValueError(f"policy {taken[0]!r} of a plugin has the name of a built-in policy; rename it")
    return found


def implemented(name: str) -> Callable[..., Any] | None:
    """Return a function that calls the implementations of a hook; None: there is no implementation."""
    hook: pluggy.HookCaller = getattr(plugin_manager().hook, name)
    return hook if hook.get_hookimpls() else None


def _by_name(what: str, offers: Iterable[Mapping[str, T]]) -> dict[str, T]:
    """Merge what several plugins offer.

    :param what: the noun for a message
    """
    found: dict[str, T] = {}
    for offered in offers:
        for name, each in offered.items():
            if found.setdefault(name, each) is not each:
                raise ValueError(f"{what} {name!r} is offered by {found[name]} and by {each}; remove one")
    return found
