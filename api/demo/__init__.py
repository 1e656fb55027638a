"""The demonstration: one story over HTTP, each promise compared with an undisturbed twin."""
