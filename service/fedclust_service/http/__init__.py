"""HTTP version 1: the thin edge between callers and use cases."""
