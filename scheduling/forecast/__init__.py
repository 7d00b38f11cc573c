"""The forecast: what live runs still have to do, and the machines that do it for the least money and time. Pure."""

from __future__ import annotations
