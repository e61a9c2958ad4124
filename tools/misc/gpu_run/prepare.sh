#!/usr/bin/env bash
# Makes what gpu_run.sh carries, on a machine without a GPU, from the root of the checkout: .gpu_run/whl (pure Python
# wheels for the device's python 3.12) and .gpu_run/_C.so (the library for torch 2.11.0+cu130, sm_90).
#
#     bash .gpu_run/prepare.sh [wheels] [library]
#
# The library takes a torch 2.11.0 of its own (about 7 GB in ~/.cache/mmattn/gpu_run). Without it, it is built on the device.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
parts=${*:-wheels library}
cache=${MMATTN_CACHE:-$HOME/.cache/mmattn}/gpu_run
python=${PYTHON:-python3}
grep -qs '^/.gpu_run/' .git/info/exclude || echo '/.gpu_run/' >>.git/info/exclude
case " $parts " in *' wheels '*)
    mkdir -p "$here/whl"
    # All are py3-none-any. mmcv without torch in sight is built without its operators; mmseg has no wheel on the index.
    $python -m pip wheel -q --no-deps -w "$here/whl" --no-binary onedl-mmcv,onedl-mmsegmentation \
        onedl-mmcv==2.3.6 onedl-mmsegmentation==1.4.2 onedl-mmengine==0.10.12 addict==2.4.0 ftfy==6.3.1 \
        platformdirs==4.14.5 prettytable==3.18.0 termcolor==3.3.0 yapf==0.43.0
    $python -m pip download -q --no-deps --only-binary=:all: --python-version 3.12 --implementation cp \
        --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 -d "$here/whl" wcwidth==0.9.4
    ls -l "$here/whl" ;;
esac
case " $parts " in *' library '*)
    if [ ! -x "$cache/venv/bin/python" ]; then
        $python -m venv "$cache/venv"
        "$cache/venv/bin/python" -m pip install -q torch==2.11.0 setuptools==81.0.0 wheel ninja numpy
    fi
    "$cache/venv/bin/python" -c 'import torch; assert torch.__version__ == "2.11.0+cu130", torch.__version__'
    rm -rf "$cache/tree" && mkdir -p "$cache/tree"
    cp -r setup.py pyproject.toml README.md LICENSE MANIFEST.in mmattn configs tools "$cache/tree"
    rm -f "$cache/tree/mmattn/_C.so"
    (cd "$cache/tree" && PATH=$cache/venv/bin:$PATH CUDA_HOME=${CUDA_HOME:-/usr/local/cuda-13.0} FORCE_CUDA=1 TORCH_CUDA_ARCH_LIST=9.0 \
        MAX_JOBS=$(nproc) "$cache/venv/bin/python" setup.py build_ext --inplace)
    cp "$cache/tree/mmattn/_C.so" "$here/_C.so" && ls -l "$here/_C.so" ;;
esac
