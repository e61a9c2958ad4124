"""GPUs: a check of the kernels on one, and a report of what runs. Only the table of ``dispatch.py`` decides.

Nothing imports it: both are programs, ``python -m mmattn.utils.check_gpu`` and ``python -m mmattn.utils.collect_env``.
It imports ``ops`` and ``utils``. Start with ``check_gpu.py``; ``ops/operator_calls.py`` has the
calls that it runs, and ``ops/testing.py`` compares them.
"""
