"""Forecasts in the controller: the remaining work of live runs, and the plans by which machines are launched for it."""

from __future__ import annotations
