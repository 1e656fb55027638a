"""mixers."""
