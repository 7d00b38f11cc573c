"""How hypothesis tests here."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

# A machine that is busy with something else is slow; that is no failure. CI tries the same examples every time.
settings.register_profile("lading", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", settings.get_profile("lading"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") == "true" else "lading")
