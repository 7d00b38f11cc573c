"""The forecast in the controller: what live runs still have to do, and by which plan machines are bought for it."""

from __future__ import annotations
