"""What is reported about jobs: phases, expected starts, right sizes and bills. Pure."""

from __future__ import annotations
