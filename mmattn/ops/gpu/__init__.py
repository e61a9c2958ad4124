"""GPUs: which kernels run on one, the check that decides it, and a report of what runs."""
