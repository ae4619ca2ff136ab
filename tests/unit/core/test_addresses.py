"""``host:port``, put together and taken apart."""

from __future__ import annotations

import pytest

from stelae.core.addresses import address_of, host_of, split_address
from stelae.core.errors import InvalidArgument


@pytest.mark.parametrize("host", ["127.0.0.1", "node-1.example", "::1", "fe80::1%eth0"])
def test_what_was_put_together_is_taken_apart(host: str) -> None:
    """Names, IPv4, and IPv6 with and without a zone."""
    address = address_of(host, 7000)
    assert split_address(address) == (host, 7000)
    assert host_of(address) == host


def test_an_ipv6_host_stands_in_brackets() -> None:
    """Its colons would be taken for that of the port."""
    assert address_of("fd00::1", 7000) == "[fd00::1]:7000"


@pytest.mark.parametrize("text", ["", "host", ":7000", "host:", "host:-1", "host:x", "host:65536"])
def test_what_is_no_address_is_refused(text: str) -> None:
    """With what it should be."""
    with pytest.raises(InvalidArgument, match="is not host:port"):
        split_address(text)


def test_no_address_has_no_host() -> None:
    """A server that is not there yet has the empty one."""
    assert host_of("") == ""
