"""The maths of the semiparametric mixture (Paper B): EM, density ratios, routing, diagnostics."""
