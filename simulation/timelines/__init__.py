"""Traces of timelines, replayed against the TLA+ model in ``spec/``.

Each step of a trace must be a step of the model, and must lead to the state that the step reports.
A line is written when its step is durable, and before anybody learns of it. A step that the model
does not allow ends the run where it is taken.

1. `recorder` watches safekeepers, proposers, migrations and stores of a running world.
2. Each step becomes one of the `events`, a line of JSON named as the model's action.
3. `trace` replays it at once: preconditions, the new state, and the invariants.
4. `state` holds what the model knows of each safekeeper, proposer and migrator.
5. `log` is a log as the model sees it: the term of each entry.

Read first: `trace`. Also searched for as: TLA+, trace validation, model checking, refinement.
"""
