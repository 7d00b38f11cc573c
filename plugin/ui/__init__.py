"""What Airflow's UI shows of Lading: the page, its tabs, and the application with the data for them."""

from __future__ import annotations
