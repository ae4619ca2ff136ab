"""Settings of hypothesis for all tests."""

from __future__ import annotations

from hypothesis import settings

# Examples follow from the test alone, so that the same code passes or fails every time. A busy
# machine is no failure either: a test that wants a bound on time sets it itself.
settings.register_profile("gate", deadline=None, derandomize=True, database=None)
# Other examples in each run, for `make soak-tests`; failures stay in .hypothesis for the next one.
settings.register_profile("fresh", deadline=None)
settings.load_profile("gate")
