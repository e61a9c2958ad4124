# MUTAN: Skip-Thought, five branches of 510 channels, two glimpses. `SKIP_THOUGHT_ROOT` has uni_skip.npz, utable.npy and
# dictionary.txt.
model = dict(
    type='mmattn.VQAModel',
    # Another corpus has another number of words: training then stops, and prints `--cfg-options model.vocab_size=N`.
    vocab_size=15193,
    num_answers=2000,
    num_features=2048,
    question_encoder=dict(
        type='mmattn.SkipThoughtEncoder', pretrained='{{$SKIP_THOUGHT_ROOT:data/skip_thought}}/uni_skip.npz'
    ),
    head=dict(type='mmattn.FusionHead', fusion=dict(type='mmattn.HadamardFusion')),
    loss='cross_entropy',
)
custom_hooks = [
    dict(
        type='mmattn.WordVectorHook',
        file='{{$SKIP_THOUGHT_ROOT:data/skip_thought}}/utable.npy',
        dictionary='{{$SKIP_THOUGHT_ROOT:data/skip_thought}}/dictionary.txt',
    )
]
