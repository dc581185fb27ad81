"""Distances, weighted k-means, Ward, moments, randomness, threads: no notion of a session."""
