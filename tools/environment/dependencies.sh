#!/usr/bin/env bash
# Makes .venv, or completes one that was interrupted: the locked packages, torch, mmcv with its operators. It reads nothing
# but this folder, so that an image can keep what it makes in a layer that a change of mmattn leaves alone.
#
# PYTHON              interpreter for .venv (3.11 to 3.13); default: python3
# MMATTN_ACCELERATOR  cpu or cuda; default: cuda if nvidia-smi lists a GPU
# MMATTN_CACHE        where built wheels and downloads are kept; default: ~/.cache/mmattn
# TORCH_INDEX_URL     where the CPU build of torch comes from if no local wheel folder (PIP_FIND_LINKS) has it
set -euo pipefail
cd "$(dirname "$0")/../.."

torch=2.13.0
mmcv=2.3.6
python=${PYTHON:-python3}
export PIP_DISABLE_PIP_VERSION_CHECK=1

say() { printf '\033[1m[mmattn]\033[0m %s\n' "$*"; }
fail() { printf '[mmattn] error: %s\n' "$*" >&2; exit 1; }
quietly() { # run pip, and show what it said only if it fails
    local log; log=$(mktemp)
    "$@" >"$log" 2>&1 || { tail -n 20 "$log" >&2; rm -f "$log"; return 1; }
    rm -f "$log"
}

accelerator=${MMATTN_ACCELERATOR:-cpu}
if [ -z "${MMATTN_ACCELERATOR:-}" ] && command -v nvidia-smi >/dev/null && nvidia-smi -L 2>/dev/null | grep -q GPU
then accelerator=cuda; fi
case $accelerator in cpu|cuda) ;; *) fail "MMATTN_ACCELERATOR is '$accelerator': set it to cpu or cuda" ;; esac
stamp="$accelerator torch-$torch mmcv-$mmcv $(cksum <tools/environment/lock.txt)"
if [ "$(cat .venv/dependencies-stamp 2>/dev/null)" = "$stamp" ] && [ -x .venv/bin/python ]; then exit 0; fi

command -v "$python" >/dev/null || fail "no '$python': set PYTHON to a Python of 3.11 to 3.13"
"$python" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' ||
    fail "$("$python" --version) is not supported: set PYTHON to a Python of 3.11 to 3.13"
if [ ! -x .venv/bin/pip ]; then
    say 'making .venv'
    "$python" -m venv --clear .venv || fail 'cannot make .venv (on Debian: apt install python3-venv)'
fi
python=.venv/bin/python
rm -f .venv/dependencies-stamp

say 'installing the locked packages'
quietly $python -m pip install --no-deps -r tools/environment/lock.txt || fail 'pip could not install tools/environment/lock.txt'

if ! $python -c "import sys, torch; sys.exit(torch.__version__.split('+')[0] != '$torch' or (torch.version.cuda is None) != ('$accelerator' == 'cpu'))" 2>/dev/null; then
    say "installing torch $torch ($accelerator)"
    quietly $python -m pip uninstall --yes torch # to pip, the build for the other accelerator is the version asked for
    if [ $accelerator = cuda ]; then
        quietly $python -m pip install "torch==$torch" || fail "pip could not install torch==$torch"
        $python -c 'import sys, torch; sys.exit(torch.version.cuda is None)' ||
            fail "pip's torch==$torch is a build for CPUs: MMATTN_ACCELERATOR=cpu does with it"
    else # a folder of wheels that pip is set up with comes first
        quietly $python -m pip install --no-deps --no-index "torch==$torch" 2>/dev/null ||
            quietly $python -m pip install --no-deps --index-url "${TORCH_INDEX_URL:-https://download.pytorch.org/whl/cpu}" "torch==$torch" ||
            fail "no CPU build of torch==$torch: set TORCH_INDEX_URL to an index that has it"
    fi
fi

export MMATTN_ACCELERATOR=$accelerator
mmcv_wheel=$(bash tools/environment/mmcv_wheel.sh "$PWD/$python" onedl-mmcv $mmcv) || exit 1
say 'installing mmcv'
quietly $python -m pip install --no-deps "$mmcv_wheel" || fail 'pip could not install the mmcv wheel'
printf '%s' "$stamp" >.venv/dependencies-stamp
