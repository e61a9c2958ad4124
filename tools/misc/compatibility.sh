#!/usr/bin/env bash
# Runs the tests with one family of OpenMMLab, one torch and one Python, as a user installs them: the source archive and
# its extras in a separate environment; pip selects the other versions. Before the tests, torch.compile compiles every
# operator, and Triton the kernels for an H100, without a GPU. The last line is a row for docs/compatibility.md.
#
#     bash tools/misc/compatibility.sh openmmlab 2.13.0 python3.11                   the original packages, all tests
#     bash tools/misc/compatibility.sh onedl 2.13.0 python3.12 tests/layers -k grid  with arguments for pytest
#     bash tools/misc/compatibility.sh lite 2.4.0 python3.11 tests/ops               mmcv-lite, for the tests of the operators
#
# MMATTN_CACHE      folder of the environment (compatibility/…, several GB if torch has CUDA) and of mmcv's wheel;
#                   default: ~/.cache/mmattn. An existing environment is reused.
# TORCH_INDEX_URL   package index for torch instead of pip's default, such as that of its CPU builds
set -euo pipefail
if [ $# -lt 3 ]; then sed -n '2,13p' "$0" >&2; exit 2; fi
family=$1 torch=$2 interpreter=$3
shift 3
# What torch for CUDA requires; torch for CPUs comes without Triton.
case $torch in 2.11.*) triton=3.6.0 ;; 2.13.*) triton=3.7.0 ;; *) triton= ;; esac
case $family in
    onedl) mmcv=(onedl-mmcv 2.3.6) others=(onedl-mmengine==0.10.12 onedl-mmsegmentation==1.4.2) mmdet=(onedl-mmdetection==3.5.1 imaug==0.4.3) ;;
    openmmlab) mmcv=(mmcv 2.1.0) others=(mmengine==0.10.7 mmsegmentation==1.2.2) mmdet=(mmdet==3.3.0) ;;
    lite) mmcv=() others=(mmengine==0.10.7 mmcv-lite==2.1.0) mmdet=() ;; # requires no compilation, but mmseg does not run with it
    *) printf "FAMILY is onedl, openmmlab or lite, not '%s'\n" "$family" >&2; exit 2 ;;
esac
cd "$(dirname "$0")/../.."
version=$("$interpreter" -c 'import platform; print(platform.python_version())')
venv=${MMATTN_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/mmattn}/compatibility/$family-torch$torch-py$version
commit=$(git describe --always --dirty --abbrev=8 --exclude='*')
export PIP_DISABLE_PIP_VERSION_CHECK=1

say() { printf '\033[1m[mmattn]\033[0m %s\n' "$*"; }

say "$venv"
[ -x "$venv/bin/pip" ] || "$interpreter" -m venv --clear "$venv"
python=$venv/bin/python
"$python" -m pip install -q ${TORCH_INDEX_URL:+--index-url "$TORCH_INDEX_URL"} "torch==$torch"
"$python" -m pip install -q 'setuptools>=77,<81' wheel ninja psutil packaging numpy
if [ "$triton" ]; then "$python" -m pip install -q --no-deps "triton==$triton"; fi
if [ "${mmcv[*]}" ]; then others+=("$(bash tools/environment/mmcv_wheel.sh "$python" "${mmcv[@]}")"); fi

say 'installing mmattn from its archive, with extras'
rm -rf "$venv/sources"
mkdir -p "$venv/sources/egg"
"$python" setup.py -q egg_info --egg-base "$venv/sources/egg" sdist -d "$venv/sources"
tar -xzf "$venv"/sources/mmattn-*.tar.gz -C "$venv/sources"
cd "$venv"/sources/mmattn-*/
# FORCE_CUDA=0: CUDA kernels are not tested here.
FORCE_CUDA=0 "$python" -m pip install -q --no-build-isolation -e ".[${mmcv:+$family,}det,video,language,reproduction,dev]" "${others[@]}" "torch==$torch"
if [ "${mmdet[*]}" ]; then "$python" -m pip install -q --no-deps "${mmdet[@]}"; fi
"$python" -m pip check || true
"$python" -m mmattn.utils.collect_env

status=0
say 'compiling every operator with torch.compile'
"$python" -m pytest tests/ops/test_autograd.py -k torch_compile 2>&1 | tee "$venv/compile.log" || status=$?
kernels=$("$python" -c 'from mmattn.ops import triton; print(triton.unavailable_reason())')
if [ -z "$kernels" ]; then
    say 'compiling the Triton kernels'
    kernels='compiled'
    "$python" tools/benchmarks/compile_triton.py --channels 64 --dtypes float16 || { status=$? kernels='failed'; }
    kernels="Triton $("$python" -c 'import triton; print(triton.__version__)'): $kernels"
fi

say "testing ${*:-everything}"
"$python" -m pytest "$@" 2>&1 | tee "$venv/tests.log" || status=$?
"$python" - "${*:-all}" "$kernels" "$commit" "$venv"/{compile,tests}.log <<'END'
import re
import sys
from importlib.metadata import distributions
from pathlib import Path
found = {each.metadata['Name'].lower(): each.version for each in distributions()}
names = [name for name in found if re.fullmatch(r'(onedl-)?(mmengine|mmcv(-lite)?|mmsegmentation|mmdet|mmdetection)', name)]
family = ', '.join(f'{name} {found[name]}' for name in sorted(names))
tests, kernels, commit, *logs = sys.argv[1:]
outcomes = [re.findall(r'^(?:=+ )?(\d+ (?:passed|failed|skipped|error).*?) in ', Path(log).read_text(), re.M) for log in logs]
compiled, tested = (re.sub(r', \d+ (deselected|warnings?)', '', outcome[-1]) if outcome else 'broken off' for outcome in outcomes)
print(f"| {family} | {found['torch']} | {sys.version.split()[0]} | {compiled} | {kernels} | `{commit}` | {tests} | {tested} |")
END
exit $status
