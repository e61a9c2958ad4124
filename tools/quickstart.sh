#!/usr/bin/env bash
# From nothing to a trained, evaluated and drawn Bi-CC segmentor on real aerial images; on CPUs, or a GPU if there is one.
#
#     bash tools/quickstart.sh          all results are in work_dirs/quickstart
#     bash tools/quickstart.sh --peer   the same, then criss-cross attention without positions in the same budget
#
# Safe to run twice; interrupted, it resumes where it stopped.
set -euo pipefail
cd "$(dirname "$0")/.."
source tools/environment/steps.sh

config=configs/bi_cc/bi-cc_r18-d8-half_1xb8-50_buildings-256x256.py
work=work_dirs/quickstart
sample=data/buildings
export MMATTN_LOG=$PWD/$work/quickstart.log
results=()

run() { # NAME FOLDER [OPTIONS…]
    local name=$1 folder=$2
    shift 2
    step "$name: training" .venv/bin/python tools/train.py $config --work-dir "$folder" --resume "$@"
    rm -rf "$folder/test"
    step "$name: testing" .venv/bin/python tools/test.py $config "$folder/iter_50.pth" --work-dir "$folder/test" \
        --show-dir "$folder/test" "$@"
    results+=(--result "$name=$(echo "$folder"/test/*/*.json)")
}
get_sample() { PYTHONPATH=$PWD .venv/bin/python tools/dataset_converters/sample_data.py buildings; }
sample_is_there() {
    local code=0
    wait $getting || code=$?
    cat $work/sample.log
    rm $work/sample.log
    return $code
}
score() { .venv/bin/python tools/analysis_tools/majority_baseline.py $config "${results[@]}" --out $work/miou.md; }
draw() { # what the model attends to from a roof, a lawn and bare ground of a held-out tile
    .venv/bin/python tools/visualization/attention_maps.py $config $work/iter_50.pth \
        $sample/img_dir/val/Ortoimagem_MI_2970-1-SO_967.png \
        --query 105,160 --query 265,205 --query 470,260 --out $work/attention_maps.png
}

case "$*" in ''|--peer) ;; -h|--help) usage tools/quickstart.sh && exit ;; *) usage tools/quickstart.sh >&2; exit 2 ;; esac
mkdir -p $work
say "log: $work/quickstart.log"
bash tools/environment/dependencies.sh
get_sample >$work/sample.log 2>&1 & # while mmattn is built
getting=$!
trap 'kill $getting 2>/dev/null || true' EXIT
bash tools/environment/setup.sh
step 'sample: 12 aerial images with masks of buildings' sample_is_there
run Bi-CC $work
if [ "${1:-}" = --peer ]; then run CC $work/peer --cfg-options model.decode_head.position=none; fi
step 'scoring the prediction of the majority class' score
step 'drawing attention maps' draw

say 'mIoU on the held-out tiles, compared with predicting the majority class everywhere:'
cat $work/miou.md
say 'pictures:'
find $work/test -name '*.png' | sort | sed 's/$/    image with its truth, image with its prediction/'
printf '%s\n' "$work/attention_maps.png    what three pixels attend to"
say 'next: docs/custom_data.md, your own images; docs/components.md, all components'
