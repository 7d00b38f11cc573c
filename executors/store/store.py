"""What :mod:`lading.executors.store` has, under the name that it had."""

from lading.executors.store import *  # noqa: F403
