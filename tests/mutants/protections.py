"""All mutants: guards, fences, checks of epochs, terms and checksums, syncs, bounds."""

from __future__ import annotations

from tests.mutants import (
    away_mutants,
    backup_mutants,
    coordinator_mutants,
    launch_mutants,
    rack_mutants,
    raft_mutants,
    safekeeper_mutants,
    storage_mutants,
    tls_mutants,
    token_mutants,
    wal_mutants,
)
from tests.mutants.mutant import Mutant

MUTANTS: tuple[Mutant, ...] = (
    *raft_mutants.MUTANTS,
    *wal_mutants.MUTANTS,
    *storage_mutants.MUTANTS,
    *backup_mutants.MUTANTS,
    *coordinator_mutants.MUTANTS,
    *safekeeper_mutants.MUTANTS,
    *tls_mutants.MUTANTS,
    *away_mutants.MUTANTS,
    *rack_mutants.MUTANTS,
    *launch_mutants.MUTANTS,
    *token_mutants.MUTANTS,
)
