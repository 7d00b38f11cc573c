"""What people are told about jobs: why they wait, in classes, and what would have sufficed for them. Pure."""

from __future__ import annotations
