"""States and rules of sessions, rounds, submissions and access, as data and without I/O."""
