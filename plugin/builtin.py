"""The built-in kinds of sites and batch systems, registered like those of third parties."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lading.hooks.batch.lsf.system import LSF
from lading.hooks.batch.pbs.pbspro import PBSPro
from lading.hooks.batch.pbs.torque import TORQUE
from lading.hooks.batch.sge.system import SGE
from lading.hooks.batch.slurm.system import SLURM
from lading.hooks.batch.system import BatchSystem
from lading.hooks.ec2.site import EC2Site
from lading.hooks.machines.fixed import FixedSite
from lading.hooks.machines.local import LocalSite
from lading.hooks.site import Site
from lading.plugin.hookspecs import hookimpl
from lading.scheduling.matching.bindings import FILTERS, GetTargets


@hookimpl
def site_kinds() -> Sequence[type[Site[Any]]]:
    return [LocalSite, FixedSite, EC2Site]


@hookimpl
def binding_filters() -> Mapping[str, GetTargets]:
    return FILTERS


@hookimpl
def batch_systems() -> Sequence[type[BatchSystem]]:
    return [SLURM, PBSPro, TORQUE, LSF, SGE]
