"""Use cases: what callers may ask of the coordinator, the driver and the sweeper."""
