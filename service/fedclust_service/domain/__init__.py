"""Sessions, rounds, submissions, access: states and rules as data, without I/O."""
