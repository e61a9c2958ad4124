"""Short trainings of the methods for a data set, on CPUs: scores and pictures."""
