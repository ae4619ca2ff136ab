"""`stelae.keeper`: what SIGTERM does while a cluster comes up."""

from __future__ import annotations

import signal

import pytest

from stelae.keeper import interrupted_by_sigterm


def test_a_second_sigterm_does_not_end_the_cleaning_up_of_the_first() -> None:
    """The first is an interrupt, as Ctrl-C is; what then takes everything down is let finish; and
    afterwards the signal means what it meant before."""
    done: list[str] = []
    before = signal.getsignal(signal.SIGTERM)

    def launch() -> None:
        with interrupted_by_sigterm():
            try:
                signal.raise_signal(signal.SIGTERM)
                done.append("not reached")
            finally:
                signal.raise_signal(signal.SIGTERM)
                signal.raise_signal(signal.SIGTERM)
                done.append("cleaned up")

    with pytest.raises(KeyboardInterrupt):
        launch()
    assert done == ["cleaned up"]
    assert signal.getsignal(signal.SIGTERM) is before
