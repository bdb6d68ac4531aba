"""What the tests share: hypothesis profiles, and a live server.

`pytest` is quick; `pytest --hypothesis-profile=thorough` takes its time to look for counterexamples.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

common = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]}
settings.register_profile("quick", max_examples=60, **common)
settings.register_profile("thorough", max_examples=5000, **common)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))
