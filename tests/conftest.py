"""What holds for all tests."""

from __future__ import annotations

from hypothesis import settings

# A busy machine is no failure: whoever wants a bound on time sets it in the test.
settings.register_profile("stelae", deadline=None)
settings.load_profile("stelae")
