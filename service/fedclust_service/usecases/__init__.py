"""The coordinator's use cases, and its threads: the driver, the sweeper and the sealer."""
