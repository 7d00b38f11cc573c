"""What people are told about jobs: why they wait, in classes. Pure."""

from __future__ import annotations
