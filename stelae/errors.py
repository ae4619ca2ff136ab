"""All errors that Stelae raises, by family: see `stelae.core.errors`."""

from stelae.core.errors import *  # noqa: F403
from stelae.core.errors import StelaeError as StelaeError
