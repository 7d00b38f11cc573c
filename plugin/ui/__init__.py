"""Lading in Airflow's UI: the page, its tabs, and the application that serves their data.

Everything shown comes from the store; no site is contacted.
"""

from __future__ import annotations
