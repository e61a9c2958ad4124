"""Report the environment for a bug report: ``python -m mmattn.utils.collect_env``."""

from runpy import run_module

if __name__ == '__main__':
    run_module('mmattn.ops.gpu.collect_env', run_name='__main__', alter_sys=True)
