"""The embedded guest: a small byte-level RWKV-7, its training data, script and measurement."""
