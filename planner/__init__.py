"""What a cluster will do and need before it is there: recovery times, space, risk. Pure.

It imports `stelae.core` alone, and reads no clock. Formulas and simulation use the same rates; the
same seed gives the same simulated run. Probabilities are kept as logarithms.

1. `hardware` has the rates of machines; `measured` makes them from results of benchmarks.
2. `layout` says what the cluster consists of; `changes` reads changes to it, as people write them.
3. `recovery` computes each phase of a recovery, and names the resource that limits it.
4. `resources` computes memory, disk and network; `risk` the yearly chance of losing data.
5. `plan` puts all of it together, and tries which knobs would help by how much.

`simulated` runs one recovery event by event. `envelope` repeats RAMCloud's own estimate. `chance`
is arithmetic with tiny probabilities.

Read first: `plan`. Also searched for as: capacity planning, sizing, what-if, durability, MTTF.
"""
