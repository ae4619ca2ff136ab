"""Protections of tokens that are good for some tables, or for some time."""

from __future__ import annotations

from tests.mutants.mutant import mutants_of

_LIMITED = ("tests/front/test_http_limited_tokens.py",)
_DRAFTS = ("tests/unit/coordinator/ddl/test_tokens.py",)

MUTANTS = [
    *mutants_of(
        "serve/gateway/guard.py",
        _LIMITED,
        [("            await self._check_path(scope, principal)\n", "")],
    ),
    *mutants_of(
        "serve/gateway/tokens.py",
        _LIMITED,
        [
            ("about is not None and about[1] in self.tables:", "about is not None:"),
            (
                "if not self.tables or _ABOUT_NONE.fullmatch(path):",
                "if not self.tables or _ABOUT_NONE.match(path):",
            ),
            ("_ABOUT_TABLE.fullmatch(path)", "_ABOUT_TABLE.search(path)"),
            ("found.expires_at_s and found.expires_at_s <= self._now()", "False"),
            (
                "token.name, token.role, frozenset(token.tables), token.expires_at_s",
                "token.name, token.role",
            ),
        ],
    ),
    *mutants_of(
        "serve/routes/tables.py",
        _LIMITED,
        [(" if principal.may_see(record.name)]", "]")],
    ),
    *mutants_of(
        "coordinator/ddl/tokens.py",
        _LIMITED,
        [
            ("        if catalog.find(table) is None:\n", "        if False:\n"),
            ("    if order.role is Role.ADMIN:\n", "    if False:\n"),
            ("    _check_limits(catalog, order)\n", ""),
        ],
    ),
    *mutants_of(
        "coordinator/ddl/tokens.py",
        _DRAFTS,
        [
            ("[token for token in tokens if not token.is_limited]", "[token for token in tokens]"),
            (
                "any(token.name == order.name for token in there)",
                "any(token.name == order.name for token in known.tokens)",
            ),
            ("if len(there) >= MAX_TOKENS:", "if len(known.tokens) >= MAX_TOKENS:"),
            (
                "for token in known.all if token.name != order.name",
                "for token in known.tokens if token.name != order.name",
            ),
        ],
    ),
]
