"""The built-in kinds of sites and batch systems, registered like any third party's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lading.hooks.batch import BatchSystem
from lading.hooks.local import LocalSite
from lading.hooks.lsf import LSF
from lading.hooks.pbspro import PBSPro
from lading.hooks.sge import SGE
from lading.hooks.site import Site
from lading.hooks.slurm import SLURM
from lading.hooks.torque import TORQUE
from lading.plugin.hookspecs import hookimpl


@hookimpl
def site_kinds() -> Sequence[type[Site[Any]]]:
    return [LocalSite]


@hookimpl
def batch_systems() -> Sequence[type[BatchSystem]]:
    return [SLURM, PBSPro, TORQUE, LSF, SGE]
