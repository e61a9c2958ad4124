# Read by the scripts beside it: goes to the root of the checkout that has this folder, and names what a build needs.
here=$(cd "$(dirname "$0")" && pwd)
root=$here
while [ ! -e "$root/mmattn/__init__.py" ]; do
    [ "$root" != / ] || { echo "$here is not in a checkout of mmattn" >&2; exit 1; }
    root=$(dirname "$root")
done
cd "$root"
sources=(setup.py pyproject.toml README.md LICENSE MANIFEST.in mmattn configs tools)
