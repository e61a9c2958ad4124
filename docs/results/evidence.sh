#!/usr/bin/env bash
# Train the runs of a question of docs/evidence_protocol.md, from the root of the repository:
#     bash docs/results/evidence.sh a|c|d|e|f|g|h|i_cc|i_nl|j_pilot|j_cc|j_nl [OPTION …]
# Options of tools/reproduce.py go to each training. data/ has the data sets, and this folder the weights of the backbone.
set -euo pipefail
question=${1:?a question: a, c, d, e, f, g, h, i_cc, i_nl, j_pilot, j_cc or j_nl}
shift
options=("$@")
export PYTHONPATH=docs/results${PYTHONPATH:+:$PYTHONPATH}    # for the blocks of (e)
weights=(--pretrained mobilenet_v2_imagenet.pth)
last=default_hooks.checkpoint.save_best=None    # the last checkpoint is tested
faces=(4.3 --data-root data/fasseg --network small --iters 480 --backbone mobilenet-v2-d8_unet --cached-crops 1500 "${weights[@]}")
weighted='model.decode_head.loss_decode.class_weight=[1.0,1.0,1.0,4.0,4.0,4.0]'
videos=(5.1 --data-root data/davis_240p --network small --iters 600 --seeds 0 1 --backbone mobilenet-v2-s8_video --frozen "${weights[@]}"
    --folds blackswan,car-roundabout cows,dog drift-straight,horsejump-high libby,soapbox
    --rows 'SST (Grid)' 'SST (Strided)' --untrained 'first mask' 'label propagation' --units)
streets=(3.2 --dataset camvid --data-root data/camvid --scale 0.5)

reproduce() {
    python tools/reproduce.py "$@" "${options[@]}"
}

evidence_a() {
    reproduce "${streets[@]}" --iters 1200 --seeds 0 1 2 3 4 --backbone mobilenet-v2-d8_heads-128 "${weights[@]}" --cached-crops 1500 \
        --rows NL 'NL + RPE' Bi-NL CC 'CC + RPE' Bi-CC --variant 'no attention' CC model.decode_head.recurrence=0 \
        --contrasts 'Bi-CC - CC' 'Bi-NL - NL' --family 6 --work-dir work_dirs/evidence_a
}

evidence_c() {
    reproduce "${faces[@]}" --dataset fasseg_turned --seeds 0 1 2 3 4 5 6 7 8 9 --rows U-Net U-Net-BA \
        --cfg-options $last "$weighted" --contrasts 'U-Net-BA - U-Net' --family 6 --work-dir work_dirs/evidence_c
}

evidence_d() {
    reproduce "${videos[@]}" --dataset davis_240p --contrasts 'SST (Strided) - SST (Grid)' --family 6 --work-dir work_dirs/evidence_d
}

evidence_e() {
    local ba='"type": "mmattn.LocalBilateralAttention", "scale": None'    # None: 1/√d; the rest is Table 4.5
    local scaled=(--variant 'U-Net-BA, 1/√d' U-Net "model.decode_head.block=[
        {$ba, 'num_heads': 8, 'iterations': 3, 'share': True}, {$ba, 'num_heads': 8}, {$ba, 'num_heads': 4}, {$ba, 'num_heads': 4}]")
    local train=("${faces[@]}" --dataset fasseg --amp --rows U-Net)
    local settings=(--cfg-options $last "custom_imports.imports=['faces']" "$weighted")
    reproduce "${train[@]}" --seeds 0 1 2 3 4 5 6 7 "${settings[@]}" "${scaled[@]}" \
        --variant 'narrow U-Net' U-Net 'model.decode_head.up_channels=[96,48,48,24]' \
        --variant 'equal weights' U-Net 'model.decode_head.block={"_delete_": True, "type": "mmattn.MeanBlock"}' \
        --work-dir work_dirs/evidence_e
    score_faces work_dirs/evidence_e docs/results/evidence_e.json
    find data/fasseg/img_dir/train -name '*personne01*' -printf '%f\n' | sed 's/[.]jpg$//' | sort > data/fasseg/person_01.txt
    reproduce "${train[@]}" --seeds 0 1 2 "${settings[@]}" train_dataloader.dataset.ann_file=person_01.txt "${scaled[@]}" \
        --work-dir work_dirs/one_person
    score_faces work_dirs/one_person docs/results/evidence_e_one-person.json
}

score_faces() {
    python docs/results/score_faces.py "$1" --splits test --data-root data/fasseg "${weights[@]}"
    cp "$1/scores.json" "$2"
}

evidence_f() {
    reproduce "${streets[@]}" --iters 1200 --seeds 100 101 102 --backbone docs/results/mobilenet-v2_three-stages.py "${weights[@]}" \
        --cached-crops 1500 --rows NL CC --variant 'no attention' CC model.decode_head.recurrence=0 --validations 5 \
        --work-dir work_dirs/evidence_f
}

evidence_g() {    # data/multi30k_release: as published
    python tools/dataset_converters/multi30k.py data/multi30k_release
    python tools/dataset_converters/multi30k.py data/multi30k_release --target fr --out-dir data/multi30k_fr
    local translate=(multi30k --dataset multi30k_en-de --units --family 4 --amp)
    local rows=(--seeds 0 1 2 3 4 --rows SA SA-RPE Bi-SA --contrasts 'Bi-SA - SA' 'Bi-SA - SA-RPE')
    local french=(--data-root data/multi30k_fr --work-dir work_dirs/g_fr --cfg-options model.vocab_size=4993)
    reproduce "${translate[@]}" "${rows[@]}" --data-root data/multi30k --work-dir work_dirs/g_de
    reproduce "${translate[@]}" "${rows[@]}" "${french[@]}"
    reproduce "${translate[@]}" "${rows[@]}" --data-root data/multi30k --work-dir work_dirs/g_long \
        --cfg-options train_dataloader.dataset.max_length=12
    local content='"_delete_": True, "type": "mmattn.BilateralMultiheadAttention", "position": "none"'    # attention by content
    reproduce "${translate[@]}" "${french[@]}" --seeds 2 3 4 --rows SA SA-RPE Bi-SA 'Bi-SA without sinusoids' 'dynamic convolution' \
        --variant 'Bi-SA without sinusoids' Bi-SA model.positions=none \
        --variant 'dynamic convolution' 'dynamic 13' "model.cross_attention={$content}"
    python docs/results/score_translations.py de=work_dirs/g_de fr=work_dirs/g_fr long=work_dirs/g_long \
        --data-root de=data/multi30k fr=data/multi30k_fr long=data/multi30k
}

evidence_h() {
    python tools/dataset_converters/still_clips.py --images data/camvid/img_dir/train --masks data/camvid/ann_dir/train \
        --objects 8 9 10 --min-area 0.004 --out-dir data/stills
    python tools/dataset_converters/still_clips.py --images data/fasseg/img_dir/train --masks data/fasseg/ann_dir/train \
        --objects 1,2,3,4,5 --max-objects 1 --out-dir data/stills_faces
    cp -r data/stills_faces/* data/stills
    reproduce "${videos[@]}" --dataset davis_240p_stills --work-dir work_dirs/evidence_h
}

evidence_i() {    # kind, head and layer: the stock head, then its continuations
    local continue=("${streets[@]}" --rows "$1" --workers 0 --jobs 2 --backbone docs/results/mobilenet-v2_three-stages.py "${weights[@]}")
    reproduce "${continue[@]}" --iters 1200 --seeds 0 --validations 5 --cfg-options $last --work-dir "work_dirs/stock_$1"
    cp "work_dirs/stock_$1"/*/iter_1200.pth "stock_$1.pth"
    local bilateral=(model.decode_head.type=mmattn."$2" model.decode_head.smoothing=sqrt_dim
        "default_hooks.checkpoint_keys.allow=^decode_head\\.$3\\.window_position\\."
        optim_wrapper.paramwise_cfg.custom_keys.window_position.lr_mult=10)
    reproduce "${continue[@]}" --iters 200 --seeds 0 1 2 3 4 5 6 7 --family 6 --work-dir "work_dirs/continued_$1" \
        --variant "Bi-$1, default" "$1" "${bilateral[@]}" \
        --variant "Bi-$1, zero_init" "$1" "${bilateral[@]}" model.decode_head.zero_init=True \
        --contrasts "Bi-$1, default - $1" "Bi-$1, zero_init - $1" "Bi-$1, zero_init - Bi-$1, default" \
        --cfg-options "load_from=stock_$1.pth" optim_wrapper.optimizer.lr=0.0003 $last
}

# Options of tools/reproduce.py, then the rows and other settings; the data are an option. CC and NL are the bilateral heads
# without positions, which compute what the stock heads compute, in less time.
clothes() {
    local shared=(3.2 --data-root data/ccp --network small --workers 0 "${weights[@]}"
        --backbone docs/results/mobilenet-v2_three-stages_heads-48.py)
    local weighted='model.decode_head.loss_decode.class_weight=[0.19,1.09,0.74,0.67,0.61,0.7,1.51,0.63,2.5,1.22,1.13]'
    reproduce "${shared[@]}" "$@" $last model.auxiliary_head=None "$weighted"
}

stock_cc=(--variant 'stock CC' CC model.decode_head.type=mmattn.BiCCHead model.decode_head.position=none)
stock_nl=(--variant 'stock NL' NL model.decode_head.type=mmattn.BiNLHead model.decode_head.position=none)

continue_from() { # what ran before is not trained again
    local file
    for file in "docs/results/$1.json" "docs/results/unfinished/$1.json"; do
        if [ -e "$file" ] && [ ! -e "$2/results.json" ]; then cp "$file" "$2/results.json"; fi
    done
}

evidence_j_pilot() {    # the rates, then all rows and seeds at the chosen one
    local rate pilot=(--dataset docs/results/ccp_pilot.py --iters 900 --cached-crops 800 --validations 5)
    local heads=(--rows 'stock CC' 'stock NL' "${stock_cc[@]}" "${stock_nl[@]}" --contrasts 'stock NL - stock CC')
    for rate in 0.003 0.01 0.001; do
        mkdir -p work_dirs/j_features "work_dirs/j_pilot_$rate"
        ln -sfn ../j_features "work_dirs/j_pilot_$rate/features"
        continue_from "evidence_j_pilot_$rate" "work_dirs/j_pilot_$rate"
        clothes "${pilot[@]}" "${heads[@]}" --seeds 100 --work-dir "work_dirs/j_pilot_$rate" --cfg-options optim_wrapper.optimizer.lr=$rate
    done
    rate=${RATE:-0.003}
    clothes "${pilot[@]}" --seeds 100 101 102 --rows 'no attention' "${stock_cc[@]}" "${stock_nl[@]}" \
        --variant 'no attention' CC model.decode_head.type=mmattn.AttentionHead \
        --contrasts 'stock CC - no attention' 'stock NL - no attention' \
        --work-dir "work_dirs/j_pilot_$rate" --cfg-options "optim_wrapper.optimizer.lr=$rate"
    cp "work_dirs/j_pilot_$rate/results.json" "docs/results/evidence_j_pilot_$rate.json"
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
    i_cc) evidence_i CC BiCCHead cca ;;
    i_nl) evidence_i NL BiNLHead nl_block ;;
    a | c | d | e | f | g | h | j_pilot | j_cc | j_nl) "evidence_$question" ;;
    *)
        echo "evidence.sh: no runs of question '$question'" >&2
        exit 2
        ;;
esac
