#!/usr/bin/env bash
# Train the runs of question (j) of docs/evidence_protocol.md, from the root of the repository:
#     bash docs/results/evidence.sh j_cc|j_nl|j_secondary|j_trained [OPTION …]
# Options of tools/reproduce.py go to each training. data/ccp has the data, and this folder the weights of the backbone.
set -euo pipefail
question=${1:?a question: j_cc, j_nl, j_secondary or j_trained}
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
bi_cc=(--variant 'Bi-CC, 15' Bi-CC model.decode_head.window_size=15)
bi_nl=(--variant 'Bi-NL, 15' Bi-NL model.decode_head.window_size=15)
rate=optim_wrapper.optimizer.lr=0.003
divided=model.decode_head.content_smoothing=2.449489742783178    # √d
minus_infinity=(model.decode_head.padding=neg_inf model.decode_head.smoothing=sqrt_dim)    # a z-score would be of −∞
# The labels are read after the flip, because mmseg turns the prediction back.
upside_down='test_dataloader.dataset.pipeline=[{"type": "LoadImageFromFile"},
    {"type": "RandomFlip", "prob": 1.0, "direction": "vertical"}, {"type": "LoadAnnotations"}, {"type": "PackSegInputs"}]'

clothes_in() { # the work dir, then options
    mkdir -p work_dirs/j_features "work_dirs/$1"
    ln -sfn ../j_features "work_dirs/$1/features"
    # What ran before is not trained again.
    if [ -e "docs/results/$1.json" ]; then cp -n "docs/results/$1.json" "work_dirs/$1/results.json"; fi
    clothes --dataset docs/results/ccp.py --cached-crops 1600 --units --sealed --work-dir "work_dirs/$1" "${@:2}"
}

evidence_j_cc() {
    primary evidence_j_cc --rows 'stock CC' "${stock_cc[@]}" "${bi_cc[@]}" --variant 'stock CC, 1/√d' CC "${stock_cc[@]:3}" $divided \
        --contrasts 'Bi-CC, 15 - stock CC' 'Bi-CC, 15 - stock CC, 1/√d'
}

evidence_j_nl() {
    primary evidence_j_nl --rows 'stock NL' "${stock_nl[@]}" "${bi_nl[@]}" --contrasts 'Bi-NL, 15 - stock NL'
}

primary() { # the file of the runs, then the options of their rows
    clothes_in "$1" --iters 1200 --family 3 --seeds 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 "${@:2}" --cfg-options $rate
    cp "work_dirs/$1/results.json" "docs/results/$1.json"
}

# In the work dirs of the primary rows, whose weights are tested upside down; in the order of the protocol.
evidence_j_secondary() {
    after_primary cc nl
    secondary cc 'no attention' --variant 'no attention' CC model.decode_head.type=mmattn.AttentionHead
    secondary cc 'CC, upside down' 'Bi-CC, upside down' --variant 'CC, upside down' CC "${stock_cc[@]:3}" "$upside_down" \
        --variant 'Bi-CC, upside down' Bi-CC "${bi_cc[@]:3}" "$upside_down"
    secondary nl 'NL, upside down' 'Bi-NL, upside down' --variant 'NL, upside down' NL "${stock_nl[@]:3}" "$upside_down" \
        --variant 'Bi-NL, upside down' Bi-NL "${bi_nl[@]:3}" "$upside_down"
    secondary cc 'CC + RPE'
    secondary nl 'NL + RPE'
    secondary cc Bi-CC # a window of 31
    secondary nl Bi-NL
    secondary cc 'Bi-CC, padding 0' --variant 'Bi-CC, padding 0' Bi-CC "${bi_cc[@]:3}" model.decode_head.padding=zero
    secondary cc 'Bi-CC, padding −∞' --variant 'Bi-CC, padding −∞' Bi-CC "${bi_cc[@]:3}" "${minus_infinity[@]}"
    secondary nl 'Bi-NL, padding 0' --variant 'Bi-NL, padding 0' Bi-NL "${bi_nl[@]:3}" model.decode_head.padding=zero
    secondary nl 'Bi-NL, padding −∞' --variant 'Bi-NL, padding −∞' Bi-NL "${bi_nl[@]:3}" "${minus_infinity[@]}"
}

after_primary() { # cc, nl
    local head
    for head in "$@"; do
        if ! compgen -G "work_dirs/evidence_j_$head/*_seed-0/iter_1200.pth" > /dev/null; then
            echo "evidence.sh: train j_$head first: its weights are needed" >&2
            exit 2
        fi
    done
}

secondary() { # cc or nl, names of rows, options of these; their runs are added to the secondary file
    local primary=evidence_j_$1 ours="Bi-${1^^}, 15" rows=("stock ${1^^}" "Bi-${1^^}, 15") contrasts=() heads=()
    if [ "$1" = cc ]; then heads=("${stock_cc[@]}" "${bi_cc[@]}"); else heads=("${stock_nl[@]}" "${bi_nl[@]}"); fi
    shift
    while [[ $# -gt 0 && $1 != --* ]]; do
        rows+=("$1")
        contrasts+=("$ours - $1")
        shift
    done
    clothes_in "$primary" --iters 1200 --seeds 0 1 2 3 4 --rows "${rows[@]}" "${heads[@]}" "$@" --contrasts "${contrasts[@]}" \
        --family 1 --cfg-options $rate
    PYTHONPATH=tools${PYTHONPATH:+:$PYTHONPATH} python docs/results/score_clothes.py "work_dirs/$primary/results.json" \
        --beside "docs/results/$primary.json" --add-to docs/results/evidence_j_secondary.json
}

# CC of two seeds, trained further: as it is, with content logits divided by √d, and with positions.
evidence_j_trained() {
    after_primary cc
    local seed start bilateral=("${bi_cc[@]:3}" model.decode_head.smoothing=sqrt_dim
        "default_hooks.checkpoint_keys.allow=^decode_head\\.cca\\.window_position\\."
        optim_wrapper.paramwise_cfg.custom_keys.window_position.lr_mult=10)
    for seed in 0 1; do
        start=$(echo work_dirs/evidence_j_cc/cc_*_position-none_seed-$seed/iter_1200.pth)
        clothes_in evidence_j_trained_$seed --iters 200 --seeds 0 1 2 3 --rows 'stock CC' "${stock_cc[@]}" \
            --variant 'stock CC, 1/√d' CC "${stock_cc[@]:3}" $divided \
            --variant 'Bi-CC, default' Bi-CC "${bilateral[@]}" \
            --variant 'Bi-CC, zero_init' Bi-CC "${bilateral[@]}" model.decode_head.zero_init=True \
            --contrasts 'Bi-CC, default - stock CC' 'Bi-CC, zero_init - stock CC' 'Bi-CC, zero_init - Bi-CC, default' \
            'Bi-CC, default - stock CC, 1/√d' --family 1 \
            --cfg-options "load_from=$start" optim_wrapper.optimizer.lr=0.0003
        cp work_dirs/evidence_j_trained_$seed/results.json docs/results/evidence_j_trained_$seed.json
    done
}

case $question in
    j_cc | j_nl | j_secondary | j_trained) "evidence_$question" ;;
    *)
        echo "evidence.sh: no runs of question '$question'" >&2
        exit 2
        ;;
esac
