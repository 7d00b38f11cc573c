"""What is shown about jobs: the phases of their lives, and what would have sufficed for them. Pure."""

from __future__ import annotations
