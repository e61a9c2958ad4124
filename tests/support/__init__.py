"""Calls of the operators, and the comparison of their results with float64."""
