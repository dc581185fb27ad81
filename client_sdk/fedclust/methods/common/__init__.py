"""What several methods share: options, k-means rounds, convergence, finalizing, labels."""
