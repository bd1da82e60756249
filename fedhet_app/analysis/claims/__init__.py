"""Paper A's claims, each with its statistic, threshold and verdict."""
