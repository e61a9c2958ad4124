#!/usr/bin/env bash
# Builds docker/Dockerfile.cpu and runs the quick start in the image, where there is no Docker engine: with buildah in a
# chroot, on a base that debootstrap makes under the name that the file expects. Root, on Debian, 15 GB of disk:
#
#     apt-get install buildah debootstrap
#     bash docker/prove.sh            the whole, 22 minutes on two cores that did other work, too
#     bash docker/prove.sh --cuda     docker/Dockerfile instead, as far as the step that downloads torch's build for CUDA
#
# --wheels DIR  do not compile mmcv but take its wheel from DIR, as dependencies.sh left it in ~/.cache/mmattn/wheels
# --keep        keep the images, in a folder that is told at the end
#
# What pip is set up with on this machine (pip config list) is mounted for the steps that run pip and is not in the image.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf '[%4d s] %s\n' $SECONDS "$*"; }
fail() { printf 'error: %s\n' "$*" >&2; exit 1; }

file=docker/Dockerfile.cpu
wheels=
keep=
while [ $# -gt 0 ]; do
    case $1 in
        --cuda) file=docker/Dockerfile ;;
        --wheels) wheels=$(realpath -e "${2:?--wheels needs a folder}"); shift ;;
        --keep) keep=1 ;;
        *) sed -n '2,13p' "$0" >&2; exit 2 ;;
    esac
    shift
done
[ "$(id -u)" = 0 ] || fail 'debootstrap and chroot need root'
for program in buildah debootstrap git; do command -v $program >/dev/null || fail "no $program: apt-get install $program"; done

work=$(mktemp -d "${TMPDIR:-/var/tmp}/mmattn-docker.XXXXXX")
export TMPDIR=$work/tmp STORAGE_DRIVER=${STORAGE_DRIVER:-overlay}
if [ "$(stat --file-system --format %T "$work")" = overlayfs ]; then STORAGE_DRIVER=vfs; fi # overlay does not stack
mkdir "$TMPDIR"
buildah() { nice buildah --root "$work/storage" --runroot "$work/run" "$@"; } # nice, so that the machine stays usable
clean() {
    buildah rm --all >/dev/null 2>&1 || true
    findmnt --raw --noheadings --output TARGET | grep "^$work/" | sort --reverse | xargs --no-run-if-empty umount || true
    if [ -n "$keep" ]; then say "kept: buildah --root $work/storage --runroot $work/run images"
    else rm -rf --one-file-system "$work"; fi
}
trap clean EXIT

# pip.conf and the folders and files that it names, under paths of their own: mounts for buildah.
mkdir "$work/pip"
mapfile -t mounts < <(python3 - "$work/pip" <<'PYTHON'
import ast, configparser, pathlib, subprocess, sys

config, out = configparser.RawConfigParser(), pathlib.Path(sys.argv[1], 'pip.conf')
mounts = {out: '/etc/pip.conf'}
listed = subprocess.run([sys.executable, '-m', 'pip', 'config', 'list'], capture_output=True, text=True).stdout
for line in sorted(listed.splitlines(), reverse=True):  # The environment's come last and prevail.
    name, value = line.split('=', 1)
    section, option = name.replace(':env:', 'global').split('.', 1)
    words = []
    for word in ast.literal_eval(value).split():
        path = pathlib.Path(word.removeprefix('file://'))
        if path.is_absolute() and path.exists():  # An index may refer to files beside it.
            mounted, rest = (path.parent, path.name) if word.startswith('file://') else (path, '')
            mounts[mounted] = pathlib.PurePath('/run/host-pip', str(mounted).strip('/').replace('/', '-'))
            word = word.replace(str(path), str(mounts[mounted] / rest))
        words.append(word)
    config.has_section(section) or config.add_section(section)
    config.set(section, option, '\n'.join(words))
common = dict(config['global']) if config.has_section('global') else {}
config.remove_section('global')  # Last, for what is added to it.
config.read_dict({'global': common})
with out.open('w') as stream:
    config.write(stream)
print(*(f'--volume={source}:{target}:ro' for source, target in mounts.items()), sep='\n')
PYTHON
)
in_chroot=(--isolation chroot --network host "${mounts[@]}")
build() { # CONTEXT LOG
    buildah bud "${in_chroot[@]}" --pull-never --layers --build-arg "MAX_JOBS=$(nproc --all)" --file "$file" --tag mmattn "$1" \
        2>&1 | tee "$2" | grep --line-buffered -E '^(STEP|--> Using cache|.*\[mmattn\]|[Ee]rror)' || [ "${PIPESTATUS[0]}" = 0 ]
}

base=$(sed -n 's/^FROM //p' $file)
say "debootstrap as $base"
debootstrap --variant=minbase bookworm "$work/tree" >"$work/log" || { tail "$work/log" >&2; fail 'debootstrap failed'; }
if [ $file = docker/Dockerfile ]; then chroot "$work/tree" useradd --create-home --uid 1000 ubuntu; fi # as Ubuntu's image has
container=$(buildah from scratch)
buildah add --quiet "$container" "$work/tree" / >/dev/null
buildah commit --quiet --rm "$container" "docker.io/${base/#debian/library/debian}" >/dev/null
rm -rf "$work/tree"

if [ $file = docker/Dockerfile ]; then
    say "building $file as far as torch"
    echo 'torch<0' >"$work/no-torch"
    in_chroot+=("--volume=$work/no-torch:/run/no-torch:ro")
    printf 'constraint = /run/no-torch\n' >>"$work/pip/pip.conf" # to [global]
    if build . "$work/log"; then fail 'torch was installed, against a constraint'; fi
    grep -q 'torch==.* could not be installed' "$work/log" || { tail -n 30 "$work/log" >&2; fail 'stopped elsewhere'; }
    say 'stopped where torch for CUDA would be downloaded, and no earlier'
    exit
fi

if [ -n "$wheels" ]; then
    say "putting the wheels of $wheels into the builder's cache"
    printf 'FROM %s\nRUN --mount=type=cache,target=/root/.cache mkdir -p /root/.cache/mmattn && cp -r /wheels /root/.cache/mmattn/\n' \
        "$base" >"$work/Dockerfile"
    buildah bud --isolation chroot --pull-never --volume "$wheels:/wheels:ro" --file "$work/Dockerfile" "$TMPDIR" \
        >"$work/log" 2>&1 || { tail "$work/log" >&2; fail 'that did not work'; }
fi
say "building $file"
build . "$work/log" || { tail -n 30 "$work/log" >&2; fail "$file does not build"; }
say "built: $(buildah images --format '{{.Size}}' mmattn)"

container=$(buildah from --pull-never mmattn)
inside() { # [OPTIONS] CONTAINER COMMAND
    buildah run "${in_chroot[@]}" ${OMP_NUM_THREADS:+"--env=OMP_NUM_THREADS=$OMP_NUM_THREADS"} "$@"
}
root=$(buildah mount "$container")
say 'what no image should hold'
left=$(cd "$root"
    find var/lib/apt/lists var/cache/apt root home/mmattn tmp var/tmp mmattn/data mmattn/work_dirs -type f \
        ! -name lock ! -name '.bash*' ! -name .profile
    find . -xdev -name .git
    find mmattn -name '*.whl' -o -name '*.so' -path 'mmattn/mmattn/*' ! -newer mmattn/.venv/dependencies-stamp
    grep --recursive --files-with-matches --fixed-strings --exclude=prove.sh /run/host-pip etc root home mmattn run usr/local || true)
[ -z "$left" ] || fail "left in the image: $left"
say "none of it; the user and what docker run prints:"
inside "$container" id
inside "$container" python -m mmattn.utils.collect_env

say 'quick start'
inside "$container" bash tools/quickstart.sh 2>&1 | tee "$work/log" | grep --line-buffered -E '\[mmattn\]|\|' ||
    { tail -n 30 "$work/log" >&2; fail 'the quick start failed'; }
if grep -E '\[mmattn\].*(making|installing|compiling)' "$work/log"; then fail 'the quick start installed something'; fi

say 'training on a mounted folder, as a user that the image does not know'
mkdir "$work/mounted"
cp -r "$root/mmattn/data" "$work/mounted/data"
mkdir "$work/mounted/work_dirs"
chown -R 4321:4321 "$work/mounted"
container=$(buildah from --pull-never mmattn)
inside --user 4321:4321 --volume "$work/mounted/data:/mmattn/data" --volume "$work/mounted/work_dirs:/mmattn/work_dirs" "$container" \
    python tools/train.py configs/bi_cc/bi-cc_r18-d8-half_1xb8-50_buildings-256x256.py --work-dir work_dirs/mounted \
    --cfg-options train_cfg.max_iters=10 train_cfg.val_interval=10 default_hooks.logger.interval=5 >"$work/log" 2>&1 ||
    { tail -n 30 "$work/log" >&2; fail 'training failed'; }
grep -E 'Iter\(' "$work/log"
find "$work/mounted/work_dirs" -name '*.pth' -printf '%f, of user %U\n' | grep 'of user 4321' || fail 'no checkpoint outside'

say 'building again after a change of code'
mkdir "$work/source"
git ls-files -z --cached --others --exclude-standard | tar --create --null --files-from - | tar --extract --directory "$work/source"
echo '# changed' >>"$work/source/mmattn/registry.py"
build "$work/source" "$work/log" || { tail -n 30 "$work/log" >&2; fail "$file does not build"; }
grep -A1 'STEP.*dependencies\.sh' "$work/log" | tail -n 1 | grep -q 'Using cache' || fail "mmcv's layer was made again"
say 'all of it holds'
