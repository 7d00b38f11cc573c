"""The differences between the supported versions of Airflow. No other module checks a version."""

from __future__ import annotations

from airflow.models.dagbag import DBDagBag


def cached_dags(most: int) -> DBDagBag:
    """Return Airflow's stored Dags, with a cache of those read last.

    :param most: the size of the cache
    """
    try:
        from airflow.models.dagbag import CachedDBDagBag
    except ImportError:  # Airflow 3.3.0 and 3.3.1: the cache is an option of the one class
        return DBDagBag(load_op_links=False, cache_size=most, cache_ttl=0)  # type: ignore[call-arg]
    return CachedDBDagBag(load_op_links=False, cache_size=most, cache_ttl=0, stats_prefix="lading.dag_bag")
