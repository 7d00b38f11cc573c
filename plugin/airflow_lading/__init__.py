"""The package that Airflow derives from the name of the distribution ``airflow-lading``; the code is in ``lading``.

If examples are loaded (``[core] load_examples``), ``airflow.dag_processing.bundles.manager`` derives a module name from
the distribution of each provider, and imports it in every process that parses Dags, including those of tasks. Without
this package, the log of every task would begin with a traceback. Lading's own examples are not loaded, because some
need sites.

Like every provider package, it also has the version and the provider info.
"""

from __future__ import annotations

from lading.hooks.files.version import VERSION as __version__
from lading.plugin.provider_info import get_provider_info

__all__ = ["__version__", "get_provider_info"]
