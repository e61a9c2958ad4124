#!/usr/bin/env bash
# Makes what gpu_run.sh finds beside it, on a machine with a network: bash prepare.sh [wheels] [library]
#
# wheels: whl/, MMSegmentation and what it needs, in pure Python, for Python 3.12. library: _C.so, the kernels for
# torch 2.11.0+cu130 and ARCH=9.0, with a torch of its own in ~/.cache/mmattn/gpu_run (7 GB). It needs nvcc 13. Without
# it, gpu_run.sh builds the kernels.
set -euo pipefail
source "$(dirname "$0")/checkout.sh"
cache=${MMATTN_CACHE:-$HOME/.cache/mmattn}/gpu_run python=${PYTHON:-python3}
parts=("$@")
[ $# -gt 0 ] || parts=(wheels library)
for part in "${parts[@]}"; do
case $part in
wheels)
    mkdir -p "$here/whl"
    # mmcv is built without its operators where torch is missing, as in pip's own environment. mmseg has no wheel.
    $python -m pip wheel -q --no-deps -w "$here/whl" --no-binary onedl-mmcv,onedl-mmsegmentation \
        onedl-mmcv==2.3.6 onedl-mmsegmentation==1.4.2 onedl-mmengine==0.10.12 addict==2.4.0 ftfy==6.3.1 \
        platformdirs==4.14.5 prettytable==3.18.0 termcolor==3.3.0 yapf==0.43.0
    $python -m pip download -q --no-deps --only-binary=:all: --python-version 3.12 --implementation cp \
        --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 -d "$here/whl" wcwidth==0.9.4
    ls -l "$here/whl" ;;
library)
    if [ ! -x "$cache/venv/bin/python" ]; then
        $python -m venv "$cache/venv"
        "$cache/venv/bin/python" -m pip install -q torch==2.11.0 setuptools==81.0.0 wheel ninja numpy
    fi
    "$cache/venv/bin/python" -c 'import torch; assert torch.__version__ == "2.11.0+cu130", torch.__version__'
    rm -rf "$cache/tree" && mkdir -p "$cache/tree"
    cp -r "${sources[@]}" "$cache/tree"
    rm -f "$cache/tree/mmattn/_C.so"
    (cd "$cache/tree" && PATH=$cache/venv/bin:$PATH CUDA_HOME=${CUDA_HOME:-/usr/local/cuda-13.0} FORCE_CUDA=1 \
        TORCH_CUDA_ARCH_LIST=${ARCH:-9.0} MAX_JOBS=$(nproc) "$cache/venv/bin/python" setup.py build_ext --inplace)
    cp "$cache/tree/mmattn/_C.so" "$here/_C.so" && ls -l "$here/_C.so" ;;
*) echo "there is no part $part" >&2; exit 2 ;;
esac
done
