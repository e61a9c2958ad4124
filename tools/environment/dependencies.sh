#!/usr/bin/env bash
# Makes .venv, or completes one that was interrupted: the locked packages, torch and mmcv. It reads nothing but this folder,
# so that a layer of an image that holds its result does not depend on mmattn.
#
#     bash tools/environment/dependencies.sh [--with-mmcv-ops]
#
# --with-mmcv-ops     compile the operators of mmcv, which takes minutes. MMDetection, deformable convolution and some heads
#                     of MMSegmentation need them. Default: without, but a .venv that has them keeps them.
# PYTHON              interpreter for .venv (3.11 to 3.13); default: python3
# MMATTN_ACCELERATOR  cpu or cuda; default: cuda if nvidia-smi lists a GPU
# MMATTN_CACHE        where built wheels and downloads are kept; default: ~/.cache/mmattn. They save time, and change nothing else
# TORCH_INDEX_URL     where the CPU build of torch comes from if no local wheel folder (PIP_FIND_LINKS) has it. If it is not
#                     there either, pip's index serves, whose build is for CUDA, and larger
#
# uv installs the packages, with pip's settings (indexes, wheel folders, constraints, certificates); pip does where uv cannot.
set -euo pipefail
cd "$(dirname "$0")/../.."
source tools/environment/steps.sh

torch=2.13.0
mmcv=2.3.6
uv=0.13.9
python=${PYTHON:-python3}
export PIP_DISABLE_PIP_VERSION_CHECK=1

case "$*" in
    '') with_ops= ;;
    --with-mmcv-ops) with_ops=1 ;;
    -h|--help) usage tools/environment/dependencies.sh && exit ;;
    *) fail "the options are --with-mmcv-ops and --help; got $*" ;;
esac
accelerator=${MMATTN_ACCELERATOR:-cpu}
if [ -z "${MMATTN_ACCELERATOR:-}" ] && command -v nvidia-smi >/dev/null && nvidia-smi -L 2>/dev/null | grep -q GPU
then accelerator=cuda; fi
case $accelerator in cpu|cuda) ;; *) fail "MMATTN_ACCELERATOR is '$accelerator': set it to cpu or cuda" ;; esac
version_of() { "$1" -c 'import sysconfig; print(sysconfig.get_python_version())'; }
if [ -n "${PYTHON:-}" ] || [ ! -x .venv/bin/pip ]; then
    command -v "$python" >/dev/null || fail "no '$python': set PYTHON to a Python of 3.11 to 3.13"
    case $(version_of "$python") in 3.11|3.12|3.13) ;; *)
        fail "$("$python" --version) is not supported: set PYTHON to a Python of 3.11 to 3.13" ;;
    esac
    if [ -x .venv/bin/pip ] && [ "$(version_of .venv/bin/python)" != "$(version_of "$python")" ]; then
        fail "PYTHON=$python is $("$python" --version), but .venv has $(.venv/bin/python --version): remove .venv, or unset PYTHON"
    fi
fi
stamp="$accelerator torch-$torch mmcv-$mmcv $(cksum <tools/environment/lock.txt)"
installed=$(cat .venv/dependencies-stamp 2>/dev/null) || true
if compgen -G '.venv/lib/python*/site-packages/mmcv/_ext*.so' >/dev/null; then has_ops=1; else has_ops=; fi
if [ "$installed" = "$stamp" ] && [ -x .venv/bin/python ] && [ -n "$has_ops" -o -z "$with_ops" ]; then exit 0; fi

if [ ! -x .venv/bin/pip ]; then
    step 'making .venv' "$python" -m venv --clear .venv || fail 'cannot make .venv (on Debian: apt install python3-venv)'
fi
python=.venv/bin/python
rm -f .venv/dependencies-stamp

get_uv() {
    [ "$(.venv/bin/uv --version 2>/dev/null | cut -d ' ' -f 2)" = $uv ] || $python -m pip install --quiet --no-deps uv==$uv
}
install() { # arguments of pip install
    if [ -n "$has_uv" ]; then
        .venv/bin/uv pip install --python $python --compile-bytecode --index-strategy unsafe-best-match "$@" && return
        echo 'uv failed; pip tries the same'
    fi
    $python -m pip install "$@"
}
has_uv=
if get_uv >/dev/null 2>&1; then
    has_uv=1
    eval "$($python tools/environment/uv_settings.py)"
else say 'uv cannot be installed; pip installs the packages, which takes a minute longer'; fi

step 'installing the locked packages' install --no-deps -r tools/environment/lock.txt ||
    fail 'the packages in tools/environment/lock.txt could not be installed'

is_for_cuda() { $python -c 'import sys, torch; sys.exit(torch.version.cuda is None)'; }
install_torch() {
    $python -m pip uninstall --yes torch # pip takes the build for the other accelerator for the requested version
    if [ $accelerator = cuda ]; then
        install "torch==$torch" || { echo "torch==$torch could not be installed"; return 1; }
        if ! is_for_cuda; then # == prefers the builds of a wheel folder, such as torch+cpu, and === leaves them out
            install "torch===$torch" && is_for_cuda || { echo "pip's torch==$torch is a build for CPUs: set PIP_INDEX_URL" \
                "to an index with the CUDA build, or MMATTN_ACCELERATOR=cpu to use this one"; return 1; }
        fi
    else # a local folder of wheels comes first
        install --no-deps --no-index "torch==$torch" ||
            install --no-deps --index-url "${TORCH_INDEX_URL:-https://download.pytorch.org/whl/cpu}" "torch==$torch" ||
            echo 'there is no CPU build'
    fi
}
has_torch() { $python -c "import sys, torch; sys.exit(torch.__version__.split('+')[0] != '$torch')" 2>/dev/null; }
if ! has_torch || { [ $accelerator = cuda ] && ! is_for_cuda; }; then
    step "installing torch $torch ($accelerator)" install_torch || exit 1
    if ! has_torch; then
        say "no CPU build of torch $torch in PIP_FIND_LINKS and TORCH_INDEX_URL; pip's index has one for CUDA, which runs on CPUs, too, but is 3 GB to download and 6 GB on disk"
        step "installing torch $torch (for CUDA)" install "torch==$torch" ||
            fail "torch==$torch could not be installed: set TORCH_INDEX_URL or PIP_INDEX_URL to an index that has it"
    fi
fi

export MMATTN_ACCELERATOR=$accelerator
if [ -n "$with_ops$has_ops" ]; then
    wheel=$(bash tools/environment/mmcv_wheel.sh "$PWD/$python" onedl-mmcv $mmcv) || exit 1
    # pip takes mmcv without operators for the same version.
    step 'installing mmcv with its operators' $python -m pip install --no-deps --force-reinstall "$wheel" || exit 1
else
    # pip builds in an environment without torch, where mmcv leaves its operators out. Its cache of wheels must not serve
    # somebody who compiles mmcv with them later.
    step 'installing mmcv without its operators' $python -m pip install --no-deps --force-reinstall --no-cache-dir \
        --no-binary onedl-mmcv "onedl-mmcv==$mmcv" || exit 1
fi
printf '%s' "$stamp" >.venv/dependencies-stamp
