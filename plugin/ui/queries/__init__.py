"""Queries for the page and for ``airflow lading top``. They only read the store and contact no site."""

from __future__ import annotations
