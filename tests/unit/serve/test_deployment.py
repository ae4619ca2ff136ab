"""Where the HTTP front listens: IPv6 too, and what is no address is said in words."""

from __future__ import annotations

import pytest

from stelae.core.errors import InvalidArgument


def test_an_ipv6_address_is_shown_in_brackets(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the URL that clients are told."""
    from stelae.serve import deployment

    for host, url in (
        ("::1", "http://[::1]:8000"),
        ("::", "http://[::1]:8000"),
        ("0.0.0.0", "http://127.0.0.1:8000"),
        ("127.0.0.1", "http://127.0.0.1:8000"),
    ):
        options = {"host": host, "port": 8000}
        monkeypatch.setattr(deployment, "_serve_options", lambda options=options: options)
        assert deployment.serve_address() == url


def test_a_host_that_is_no_address_here_is_refused_in_words() -> None:
    """Naming the setting, and what it may be; no bare OSError."""
    from stelae.serve import deployment

    for host in ("192.0.2.1", "2001:db8::1"):
        with pytest.raises(InvalidArgument, match=r"serve\.host"):
            deployment._free_port(host)
