"""Protections of `runtime/tcp` where there is TLS: certificates, slots, sockets of one machine."""

from __future__ import annotations

from tests.mutants.mutant import mutants_of

_TLS = ("tests/unit/runtime/tcp/test_tls.py",)

MUTANTS = [
    *mutants_of(
        "runtime/tcp/tls.py",
        _TLS,
        [
            ("context.verify_mode = ssl.CERT_REQUIRED", "context.verify_mode = ssl.CERT_NONE"),
            (
                "context.minimum_version = ssl.TLSVersion.TLSv1_3",
                "context.maximum_version = ssl.TLSVersion.TLSv1_2",
            ),
            ("    server.num_tickets = 0\n", ""),
            (
                "former is None or found != self._files",
                "former is None",
            ),
            (
                "            if former is None:\n                raise\n",
                "            raise\n",
            ),
            ("if 0 <= self._now() - self._looked_at < limit_s", "if self._looked_at"),
            ("if 0 <= self._now()", "if self._now()"),
        ],
    ),
    *mutants_of(
        "runtime/tcp/door.py",
        _TLS,
        [
            ("        self._service.opened(arrival, host)\n", ""),
            ("        self._service.leave(arrival)\n", ""),
            (
                "            async with asyncio.timeout(PROOF_TIMEOUT_S):\n",
                "            async with asyncio.timeout(60.0):\n",
            ),
            ("            if not is_of_own_user(accepted):", "            if False:"),
            ("                await self._require_tls(accepted)\n", ""),
            ("        accepted.close()\n", "        pass\n"),
        ],
    ),
    *mutants_of(
        "runtime/tcp/server.py",
        _TLS,
        [("        self.leave(connection)\n        connection.fail", "        connection.fail")],
    ),
    *mutants_of(
        "runtime/tcp/local.py",
        _TLS,
        [("    if own_user and not is_of_own_user(made):", "    if False:")],
    ),
    *mutants_of(
        "runtime/tcp/handshake.py",
        _TLS,
        [
            ("            if message.startswith(TLS_RECORD):", "            if False:"),
            (
                "            self._channel += hashlib.sha256(certificate).digest()\n",
                "            pass\n",
            ),
        ],
    ),
]
