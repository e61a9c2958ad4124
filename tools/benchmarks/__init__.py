"""Benchmarks of time, memory and accuracy, compared with the alternatives."""
