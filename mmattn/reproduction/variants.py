"""Variants of methods, each with one change, which docs/evidence.md explores."""

from typing import Any

BLOCK = 'model.decode_head.block'
# Table 4.5, from the highest level down.
BLOCKS = dict(num_heads=8, iterations=3, share=True), dict(num_heads=8), dict(num_heads=4), dict(num_heads=4)
CONVOLUTION = dict(type='ConvModule', kernel_size=3, padding=1)


def blocks(**settings: Any) -> list[dict]:
    """Return the blocks of U-Net-BA with other settings."""
    return [dict(type='mmattn.LocalBilateralAttention', **{**block, **settings}) for block in BLOCKS]


SCALED = 'U-Net-BA, content logits times 1/√d'

# By name, ROW, CHANGE: the options that change the row.
UNET_BA: dict[str, dict[str, Any]] = {
    SCALED: {BLOCK: blocks(scale=None)},
    'U-Net-BA, no content logits, one pass': {BLOCK: blocks(content=False, iterations=1)},
    'U-Net-BA, one pass, own projections': {BLOCK: blocks(iterations=1, share=False)},
    'U-Net-BA, 5×5 neighbourhoods': {BLOCK: blocks(kernel_size=5)},
    'U-Net-BA, learning rate 0.001': {'optim_wrapper.optimizer.lr': 0.001},
    'U-Net-BA, convolution at the lowest level': {BLOCK: [*blocks()[:3], CONVOLUTION]},
}
