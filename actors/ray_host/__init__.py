"""The Ray actor around each server, and the cluster's Spark session.

No other folder of `stelae.actors` imports Ray or makes a real `Runtime`. The actor's constructor
never fails; a start that fails is tried again. When a background task of the server fails, the
process ends, and Ray restarts it on its disk.

1. `host` creates the actor with its `ServerPlan`, and starts the server in the background.
2. `runtime` gives the server TCP, files, Ray's object store and metrics.
3. `host` of a master watches the other actors, and tells the master when a process has died.
4. On SIGTERM `exit_hook` hands over what the server leads before the process ends.
5. `kept_files` keeps the files by which a cluster is found on every machine with a server.

6. `own_log` names its log and its process after the server.

`spark_host` starts, watches and kills the Spark session, which lives in a process of its own
(`spark_process`). `recovery_spans` turns recoveries into traces.

Read first: `host`. Also searched for as: supervisor, actor, graceful shutdown, SIGTERM, RayDP.
"""
