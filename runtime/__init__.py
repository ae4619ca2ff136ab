"""The real world under a server: TCP, files, clocks. Implements `stelae.core.runtime`.

Import from the modules: `peers` (TCP), `files` (disk), `instance` (who a server is; works over any
disk), `real` (all of it together). This file imports none of them, so that the simulator can use
`instance` without the rest.
"""
