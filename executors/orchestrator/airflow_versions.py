"""What differs between the supported versions of Airflow. Nothing else looks at a version."""

from __future__ import annotations

from airflow.models.dagbag import DBDagBag


def cached_dags(most: int) -> DBDagBag:
    """The Dags as Airflow has stored them, of which it keeps those that were read last.

    :param most: so many are kept
    """
    try:
        from airflow.models.dagbag import CachedDBDagBag
    except ImportError:  # Airflow 3.3.0 and 3.3.1: the cache is an option of the one class
        return DBDagBag(load_op_links=False, cache_size=most, cache_ttl=0)  # type: ignore[call-arg]
    return CachedDBDagBag(load_op_links=False, cache_size=most, cache_ttl=0, stats_prefix="lading.dag_bag")
