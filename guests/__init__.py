"""guests."""
