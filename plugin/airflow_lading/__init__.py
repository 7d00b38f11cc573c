"""The name under which Airflow looks for what the distribution ``airflow-lading`` brings; what it brings is ``lading``.

Where examples are loaded (``[core] load_examples``), ``airflow.dag_processing.bundles.manager`` makes the name of a
module of each provider's distribution and imports it in every process that reads Dags, each task's too. Without this
package every task's log would begin with the traceback of that. Lading's own examples are not loaded: some need sites.

It also says what every package of a provider says of itself: its version, and its provider info.
"""

from __future__ import annotations

from lading.hooks.files.version import VERSION as __version__
from lading.plugin.provider_info import get_provider_info

__all__ = ["__version__", "get_provider_info"]
