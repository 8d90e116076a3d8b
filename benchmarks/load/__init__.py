"""A fixed load on four systems, as connections, backlog and time grow.

A *turn* is what a connection does at a moment of its schedule: it sends a message, reads one and
settles it. Schedules are random (a Poisson process), fixed before the run, and the same for all
systems. A turn's delay counts from its moment in the schedule, however late it starts.

A *cell* is one system at one number of connections, backlog and body. It has two halves: in the
second one, a transaction of another session holds a snapshot.
"""
