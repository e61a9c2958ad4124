"""Report how the kernels for GPUs do on this machine: ``python -m mmattn.utils.check_gpu``."""

from runpy import run_module

if __name__ == '__main__':
    run_module('mmattn.ops.gpu.check_gpu', run_name='__main__', alter_sys=True)
