"""What the page and ``airflow lading top`` show, read from the store. Nothing here asks a site."""

from __future__ import annotations
