"""The plugin manager: what is built in and what third parties add."""

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
    """The manager with all plugins loaded, and checked against what can be added; once per process."""
    manager = registry.extensions()
    manager.add_hookspecs(hookspecs)
    manager.check_pending()
    return manager


def site_kinds() -> dict[str, type[Site[Any]]]:
    """The kinds of sites by name. Each batch system is a kind.

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
    """The batch systems by name, in the order in which they were offered; built-in ones first.

    :raises ValueError: two plugins offer the same name
    """
    return registry.batch_systems(plugin_manager())


def binding_filters() -> dict[str, GetTargets]:
    """The binding filters by name.

    :raises ValueError: two plugins offer the same name
    """
    return _by_name("binding filter", plugin_manager().hook.binding_filters())


def rules() -> dict[str, Relax]:
    """The rules of third parties by name.

    :raises ValueError: two plugins offer the same name
    """
    return _by_name("rule", plugin_manager().hook.rules())


def policies() -> dict[str, Policy]:
    """The policies of third parties by name.

    :raises ValueError: two plugins offer the same name, or one that of a policy of Lading's own
    """
    found: dict[str, Policy] = _by_name("policy", plugin_manager().hook.policies())
    if taken := sorted(found.keys() & set(BUILT_IN)):
        raise ValueError(f"policy {taken[0]!r} is Lading's own, and a plugin offers one of that name; rename it")
    return found


def implemented(name: str) -> Callable[..., Any] | None:
    """What calls the implementations of a hook; None: no plugin has one."""
    hook: pluggy.HookCaller = getattr(plugin_manager().hook, name)
    return hook if hook.get_hookimpls() else None


def _by_name(what: str, offers: Iterable[Mapping[str, T]]) -> dict[str, T]:
    """What several plugins offer.

    :param what: what each of it is called in a message
    """
    found: dict[str, T] = {}
    for offered in offers:
        for name, each in offered.items():
            if found.setdefault(name, each) is not each:
                raise ValueError(f"{what} {name!r} is offered by {found[name]} and by {each}; remove one")
    return found
