"""The coordinator."""
