"""Access tokens in the catalog: once per request, one name once, revoked for good."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from stelae.coordinator.catalog.catalog import Applied, Catalog, CatalogBatch, Conflict
from stelae.coordinator.ddl import tokens as token_drafts
from stelae.core.errors import InvalidArgument, TokenExists, TokenNotFound
from stelae.core.ids import ClientId, RequestId
from stelae.core.records.tokens import DropToken, PutToken, Role, hash_token

HASH = hash_token("stelae_one")


def request(number: int) -> RequestId:
    return RequestId(ClientId("c"), number, 1)


def put(number: int, name: str, sha256: str = HASH) -> PutToken:
    return PutToken(request(number), name, Role.READ, sha256, "me")


def carry_out(catalog: Catalog, draft: Callable[[], CatalogBatch | None]) -> object:
    batch = draft()
    return None if batch is None else catalog.apply(1, 1, batch.encode())


def test_a_token_is_made_once_and_revoked_for_good() -> None:
    """A repeated request changes nothing; a snapshot has all of it."""
    catalog = Catalog()
    first = token_drafts.draft_put(catalog, put(1, "ada"), 5.0)
    assert first is not None
    late = token_drafts.draft_put(catalog, put(2, "ada"), 6.0)
    assert late is not None
    assert isinstance(catalog.apply(1, 1, first.encode()), Applied)
    assert isinstance(catalog.apply(2, 1, late.encode()), Conflict), "it was drafted before"
    assert token_drafts.draft_put(catalog, put(1, "ada"), 7.0) is None
    with pytest.raises(TokenExists):
        token_drafts.draft_put(catalog, put(3, "ada"), 7.0)
    copy = Catalog()
    copy.restore(catalog.snapshot())
    assert copy.access == catalog.access
    assert [token.created_at_s for token in copy.access.tokens] == [5.0]
    assert token_drafts.tokens_for(copy, copy.access.generation).tokens is None
    assert token_drafts.tokens_for(copy).tokens == copy.access
    carry_out(copy, lambda: token_drafts.draft_drop(copy, DropToken(request(4), "ada")))
    assert copy.access.tokens == ()
    with pytest.raises(TokenNotFound):
        token_drafts.draft_drop(copy, DropToken(request(5), "ada"))


def test_a_token_that_only_a_file_has_is_revoked_by_its_hash() -> None:
    """Twice is not more."""
    catalog = Catalog()
    for number in (1, 2):
        order = DropToken(request(number), "admin", HASH)
        carry_out(catalog, partial(token_drafts.draft_drop, catalog, order))
    assert catalog.access.revoked == (HASH,)


def test_two_tokens_of_one_name_are_revoked_together() -> None:
    """The catalog's and the file's; nobody can make the second any more."""
    catalog = Catalog()
    carry_out(catalog, lambda: token_drafts.draft_put(catalog, put(1, "ada"), 0.0))
    of_file = "b" * 64
    order = DropToken(request(2), "ada", of_file)
    carry_out(catalog, lambda: token_drafts.draft_drop(catalog, order))
    assert (catalog.access.tokens, catalog.access.revoked) == ((), (of_file,))
    with pytest.raises(InvalidArgument, match="launch"):
        token_drafts.draft_put(catalog, put(3, "admin"), 0.0)


@pytest.mark.parametrize(
    ("name", "sha256"), [("", HASH), ("a\n", HASH), ("a/b", HASH), ("x" * 101, HASH), ("a", "zz")]
)
def test_what_is_no_token_is_refused(name: str, sha256: str) -> None:
    """The name, or the hash."""
    with pytest.raises(InvalidArgument):
        token_drafts.draft_put(Catalog(), put(1, name, sha256), 0.0)


def test_limited_tokens_are_kept_apart() -> None:
    """Where a version that knows no limits does not find them; a name is of one token all the same,
    and each can be revoked."""
    catalog = Catalog()
    carry_out(catalog, lambda: token_drafts.draft_put(catalog, put(1, "ada"), 5.0))
    limited = PutToken(request(2), "bob", Role.READ, "b" * 64, "me", (), 60.0)
    carry_out(catalog, lambda: token_drafts.draft_put(catalog, limited, 5.0))
    assert [token.name for token in catalog.access.tokens] == ["ada"]
    assert [(token.name, token.expires_at_s) for token in catalog.access.limited] == [("bob", 65.0)]
    with pytest.raises(TokenExists):
        token_drafts.draft_put(catalog, put(3, "bob"), 6.0)
    copy = Catalog()
    copy.restore(catalog.snapshot())
    assert copy.access == catalog.access
    carry_out(copy, lambda: token_drafts.draft_drop(copy, DropToken(request(4), "bob")))
    assert (len(copy.access.tokens), copy.access.limited) == (1, ())
    assert copy.access.generation == catalog.access.generation + 1


def test_a_token_that_expired_long_ago_is_no_token_any_more() -> None:
    """It is listed for a month, and then makes room for others, also for one of its name."""
    catalog, month_s = Catalog(), token_drafts.EXPIRED_KEPT_S
    limited = PutToken(request(1), "bob", Role.READ, "b" * 64, "me", (), 60.0)
    carry_out(catalog, lambda: token_drafts.draft_put(catalog, limited, 5.0))
    with pytest.raises(TokenExists):
        token_drafts.draft_put(catalog, put(2, "bob"), 65.0 + month_s)
    carry_out(catalog, lambda: token_drafts.draft_put(catalog, put(2, "bob"), 66.0 + month_s))
    assert (len(catalog.access.tokens), catalog.access.limited) == (1, ())


def test_the_number_of_tokens_counts_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """With limits or without."""
    monkeypatch.setattr(token_drafts, "MAX_TOKENS", 1)
    catalog = Catalog()
    limited = PutToken(request(1), "bob", Role.READ, "b" * 64, "me", (), 60.0)
    carry_out(catalog, lambda: token_drafts.draft_put(catalog, limited, 5.0))
    with pytest.raises(InvalidArgument, match="revoke some"):
        token_drafts.draft_put(catalog, put(2, "ada"), 6.0)
