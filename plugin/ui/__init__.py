"""What Airflow's UI shows of Lading: the page, its tabs, and the application with the data for them.

It asks no site: all that it shows is in the store.
"""

from __future__ import annotations
