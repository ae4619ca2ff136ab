"""Loops over many rows, each in numba and again in plain Python that says what it must do.

Both forms give the same result, bit for bit; property tests compare them. A compiled kernel has one
signature with read-only inputs and runs without the GIL. Callers take a `Kernels` as a parameter,
so a process that never sees a batch never imports numba.

- `api`: which kernels there are for rows, and the layout of the hash table that they share.
- `compiled`, `reference`: those kernels in numba, and in plain Python.
- `index_api`, `index_compiled`, `index_reference`: the same for entries of secondary indexes.
- `winners_compiled`: the kernels of `stelae.storage.keys.winners`.
- `default`: the kernels in numba, imported on the first use.

Read first: `api`. Also searched for as: JIT, vectorized, hot loop, linear probing, XXH64.
"""
