"""Short trainings of a data set's methods, for CPUs: how they are scored and drawn."""
