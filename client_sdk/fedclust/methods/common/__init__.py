"""What several methods share: options, local k-means, convergence, finalizing, labels."""
