"""Numerical code that knows no session: distances, weighted k-means, moments, randomness."""
