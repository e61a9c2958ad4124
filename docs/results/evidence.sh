#!/usr/bin/env bash
# Train the runs of question (j) of docs/evidence_protocol.md, from the root of the repository:
#     bash docs/results/evidence.sh j_cc|j_nl [OPTION …]
# Options of tools/reproduce.py go to each training. data/ccp has the data, and this folder the weights of the backbone.
set -euo pipefail
question=${1:?a question: j_cc or j_nl}
shift
options=("$@")

# Options of tools/reproduce.py, then the rows and other settings; the data are an option. CC and NL are the bilateral heads
# without positions, which compute what the stock heads compute, in less time.
clothes() {
    local shared=(3.2 --data-root data/ccp --network small --workers 0 --pretrained mobilenet_v2_imagenet.pth
        --backbone docs/results/mobilenet-v2_three-stages_heads-48.py)
    local weighted='model.decode_head.loss_decode.class_weight=[0.19,1.09,0.74,0.67,0.61,0.7,1.51,0.63,2.5,1.22,1.13]'
    # The last checkpoint is tested.
    python tools/reproduce.py "${shared[@]}" "$@" default_hooks.checkpoint.save_best=None model.auxiliary_head=None "$weighted" "${options[@]}"
}

stock_cc=(--variant 'stock CC' CC model.decode_head.type=mmattn.BiCCHead model.decode_head.position=none)
stock_nl=(--variant 'stock NL' NL model.decode_head.type=mmattn.BiNLHead model.decode_head.position=none)

continue_from() { # what ran before is not trained again
    local file
    for file in "docs/results/$1.json" "docs/results/unfinished/$1.json"; do
        if [ -e "$file" ] && [ ! -e "$2/results.json" ]; then cp "$file" "$2/results.json"; fi
    done
}

evidence_j_cc() {
    local rows=("${stock_cc[@]}"
        --variant 'stock CC, 1/√d' CC model.decode_head.type=mmattn.BiCCHead model.decode_head.position=none
        model.decode_head.content_smoothing=2.449489742783178
        --variant 'Bi-CC, 15' Bi-CC model.decode_head.window_size=15)
    clothes_of_test evidence_j_cc --rows 'stock CC' "${rows[@]}" --contrasts 'Bi-CC, 15 - stock CC' 'Bi-CC, 15 - stock CC, 1/√d'
}

evidence_j_nl() {
    local rows=("${stock_nl[@]}" --variant 'Bi-NL, 15' Bi-NL model.decode_head.window_size=15)
    clothes_of_test evidence_j_nl --rows 'stock NL' "${rows[@]}" --contrasts 'Bi-NL, 15 - stock NL'
}

clothes_of_test() {    # the file of the runs, then the options of their rows
    mkdir -p work_dirs/j_features "work_dirs/$1"
    ln -sfn ../j_features "work_dirs/$1/features"
    continue_from "$1" "work_dirs/$1"
    clothes --dataset docs/results/ccp.py --iters 1200 --cached-crops 1600 --units --sealed --family 3 \
        --seeds 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 --work-dir "work_dirs/$1" "${@:2}" --cfg-options optim_wrapper.optimizer.lr=0.003
    cp "work_dirs/$1/results.json" "docs/results/$1.json"
}

case $question in
    j_cc | j_nl) "evidence_$question" ;;
    *)
        echo "evidence.sh: no runs of question '$question'" >&2
        exit 2
        ;;
esac
