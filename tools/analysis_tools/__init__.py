"""Analysis of models and data sets."""
