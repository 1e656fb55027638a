"""HTTP in processes of its own: workers that speak to the engine's process over a Unix socket.

A worker parses, checks and encodes; the engine's process has the visor alone, so that no client
takes time from the step loop. `frames` is what crosses the socket, `port` the engine's end,
`remote` the worker's, `process` a worker, `pool` all of them as the engine sees them.
"""
