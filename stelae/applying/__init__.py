"""``stelae apply``: makes a running cluster what its file says, one step after the other.

After every step it looks again at what is, and plans again, so an interrupted apply goes on when it
is given again. What is refused has changed nothing. One apply runs at a time, by the masters' word;
the next server is touched only once all tablets serve and lack no replica.

1. `run` takes the turn, looks at the cluster, and has `stelae.coordinator.apply.plan` plan.
2. `places` checks ports, folders and memory on the machines that get servers.
3. `run` writes down what is asked for, and takes the first step.
4. `steps` starts, restarts, drains or ends one server; `front` does so for HTTP front and Spark.
5. `run` looks again, until nothing is left to do.

`replacing` starts servers of a machine that stays away on others, by the same actor.

`spec_operations` hands what is put over HTTP to the actor in `stelae.spec_host`.

Read first: `run`. Also searched for as: rolling upgrade, declarative, reconcile, kubectl apply.
"""
