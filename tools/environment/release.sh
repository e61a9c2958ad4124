#!/usr/bin/env bash
# Builds the source archive and, from it, the wheel of the last commit, and checks the wheel in one clean environment per
# extra, from an empty folder: imports, the registry, a config of the wheel, and a task of the extra (check_release.py).
#
#     bash tools/environment/release.sh [EXTRA…]    default: onedl openmmlab det video language export
#
# One line per environment is printed, and a table at the end; the exit code is 1 if one failed. Environments are made one
# after the other in TMPDIR and removed; the same command continues an interrupted run, and repeats what failed.
#
# PYTHON         interpreter of an environment with torch, setuptools, wheel and ninja; default: .venv/bin/python. The others
#                get its versions of Python and torch.
# MMATTN_CACHE   archives, logs and results are in its folder release/COMMIT, mmcv's wheels, which are compiled once, in wheels;
#                default: ~/.cache/mmattn
set -euo pipefail
cd "$(dirname "$0")/../.."
source tools/environment/steps.sh

python=$(realpath --no-symlinks "${PYTHON:-.venv/bin/python}")
extras=("$@")
[ $# -gt 0 ] || extras=(onedl openmmlab det video language export)
for extra in "${extras[@]}"; do
    case $extra in onedl|openmmlab|det|video|language|export|reproduction) ;; *) fail "there is no check for [$extra]" ;; esac
done
"$python" -c 'import setuptools, torch, wheel' || fail "PYTHON: $python needs torch, setuptools and wheel"
[ -z "$(git status --porcelain --untracked-files=no)" ] || say 'changes that are not committed are not in the release'

commit=$(git rev-parse --short=12 HEAD)
root=${MMATTN_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/mmattn}/release/$commit
torch=$("$python" -c 'import torch; print(torch.__version__.partition("+")[0])')
export PIP_DISABLE_PIP_VERSION_CHECK=1 PATH=$(dirname "$python"):$PATH
mkdir -p "$root"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

build_archive() {
    git clone --quiet --depth 1 "file://$PWD" "$work/clone" && cd "$work/clone" &&
        "$python" setup.py -q sdist -d "$work/dist"
}
build_wheel() {
    "$python" -m pip wheel -v --no-index --no-build-isolation --no-deps -w "$work/dist" "$work"/dist/mmattn-*.tar.gz
}
if [ ! -d "$root/dist" ]; then
    (MMATTN_LOG=$root/build.log step 'source archive of a clean clone' build_archive)
    MMATTN_LOG=$root/build.log step 'wheel of the archive' build_wheel
    mv "$work/dist" "$root/dist"
fi
wheel=$(echo "$root"/dist/mmattn-*.whl)
(cd "$root/dist" && sha256sum mmattn-*)

check() { # EXTRA
    local extra=$1 family=onedl mmcv=(onedl-mmcv 2.3.6) venv=$work/$1 ops
    if [ "$extra" = openmmlab ]; then family=openmmlab mmcv=(mmcv 2.1.0); fi
    "$python" -m venv --clear "$venv"
    "$venv/bin/python" -m pip install "torch==$torch" numpy 'setuptools>=77,<81' wheel ninja psutil packaging
    ops=$(bash tools/environment/mmcv_wheel.sh "$venv/bin/python" "${mmcv[@]}")
    "$venv/bin/python" -m pip install "$wheel[$family,$extra]" "$ops" "torch==$torch"
    if [ "$extra" = det ]; then "$venv/bin/python" -m pip install --no-deps onedl-mmdetection imaug; fi
    "$venv/bin/python" -m pip check || true # the row of docs/install.md on [det]
    mkdir "$work/empty"
    cd "$work/empty"
    env -u PYTHONPATH "$venv/bin/python" "$OLDPWD/tools/environment/check_release.py" "$extra"
}

failed=
for extra in "${extras[@]}"; do
    done=$root/$extra.ok log=$root/$extra.log
    if [ -f "$done" ]; then say "[$extra] finished before"; continue; fi
    rm -f "$log"
    start=$SECONDS
    # a process of its own: `set -e` has no effect in a function whose exit code is examined
    export -f check; export python torch wheel work extra
    if MMATTN_LOG=$log step "[$extra]" bash -euo pipefail -c 'check "$extra"'; then
        grep '^checked ' "$log" | sed "s/^checked /ok, $((SECONDS - start)) s: /" >"$done.part"
        mv "$done.part" "$done"
    else
        failed+=" $extra"
    fi
    rm -rf "${work:?}/$extra" "$work/empty"
done

printf '\n| extra | result |\n|---|---|\n'
for extra in "${extras[@]}"; do
    if [ -f "$root/$extra.ok" ]; then result=$(cat "$root/$extra.ok"); else result="failed: $(tail -n 1 "$root/$extra.log")"; fi
    printf '| `[%s]` | %s |\n' "$extra" "$result"
done
[ -z "$failed" ] || fail "failed:$failed; logs in $root"
