"""The forecast: the remaining work of live runs, and the machines that finish it with the least money and time.
Pure."""

from __future__ import annotations
