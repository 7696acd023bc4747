"""What crosses processes: frozen dataclasses, standard library only.

`spec` the job spec · `status` the coarse words users see · `events` the kinds of facts · `cluster` what agents and
controllers say to the service · `worker` what a controller and its training processes say to each other · `codec` JSON.
"""

WIRE_VERSION = 1
"""Version of every message below; a peer accepts its own and the one before."""
