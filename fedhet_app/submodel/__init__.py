"""Sub-models of different width: slices, their average, and who gets which width."""
