"""What models and data sets consist of."""
