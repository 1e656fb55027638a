"""The command line: a client of a running server, which it reaches over HTTP alone.

It imports neither torch nor the database: `statevisor ls` must answer at once.
"""
