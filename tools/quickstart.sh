#!/usr/bin/env bash
# From nothing to a trained, evaluated and drawn Bi-CC segmentor on real aerial images; on CPUs, or a GPU if there is one.
#
#     bash tools/quickstart.sh          everything lands in work_dirs/quickstart
#     bash tools/quickstart.sh --peer   the same, then mmseg's CCHead in the same budget, for comparison
#
# Safe to run twice; interrupted, it goes on where it stopped.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf '\033[1m[mmattn]\033[0m %s\n' "$*"; }
work=work_dirs/quickstart
results=()

run() { # NAME CONFIG FOLDER
    local folder=$work${3:+/$3}
    say "$1: training"
    .venv/bin/python tools/train.py "$2" --work-dir "$folder" --resume
    say "$1: testing"
    rm -rf "$folder/test"
    .venv/bin/python tools/test.py "$2" "$folder/iter_100.pth" --work-dir "$folder/test" --show-dir "$folder/test"
    results+=(--result "$1=$(echo "$folder"/test/*/*.json)")
}

case "${1:-}" in ''|--peer) ;; *) sed -n '2,7p' "$0" >&2; exit 2 ;; esac
bash tools/environment/setup.sh
if .venv/bin/python -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; then
    say 'checking the kernels on this GPU'
    .venv/bin/python -m mmattn.utils.check_gpu --once || say 'what was not found correct runs in PyTorch'
fi
.venv/bin/python tools/dataset_converters/sample_data.py buildings
config=configs/bi_cc/bi-cc_r18-d8-half_1xb8-100_buildings-256x256.py
run Bi-CC $config ''
if [ "${1:-}" = --peer ]; then run CC "${config/bi-cc_/cc_}" peer; fi

say 'mIoU on the held-out tiles, beside predicting the majority class everywhere:'
.venv/bin/python tools/analysis_tools/majority_baseline.py $config "${results[@]}" --out $work/miou.md
say 'what the model attends to from a roof, a lawn and bare ground of a held-out tile:'
.venv/bin/python tools/visualization/attention_maps.py $config $work/iter_100.pth \
    data/buildings/img_dir/val/Ortoimagem_MI_2970-1-SO_967.png \
    --query 105,160 --query 265,205 --query 470,260 --out $work/attention_maps.png
say "log, checkpoint: $work"
say 'pictures (left: truth, right: prediction):'
find $work/test -name '*.png' | sort
