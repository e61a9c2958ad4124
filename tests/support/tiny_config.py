"""The tiny version of a config: components, options, optimizer and schedule stay, sizes shrink."""

from typing import Any

from mmengine.config import Config

from mmattn.utils.component_type import dicts
from reproduction.task import find_task

IMAGE = (48, 40)  # width, height
CROP = 32  # a multiple of the downsampling of mmseg's U-Net
# Numbers of channels of networks for images, which become an eighth.
WIDTHS = (
    *('channels', 'base_channels', 'stem_channels', 'in_channels', 'out_channels', 'fc_out_channels'),
    *('up_channels', 'feat_channels', 'c1_in_channels', 'c1_channels'),
)
SENTENCE = dict(embed_dim=16, num_heads=2, feedforward_dim=24)
# Sizes of the networks for sentences; the depth stays, but for translation, whose sizes have names.
NETWORKS: dict[str, dict[str, Any]] = {
    'mmattn.TranslationTransformer': dict(size='tiny'),
    'mmattn.SANCaptioner': SENTENCE,
    'mmattn.ETACaptioner': SENTENCE,
    'mmattn.MCAN': dict(SENTENCE, word_dim=6, fused_dim=6),
    'mmattn.PhraseGrounder': dict(embed_dim=8),
    'mmattn.VQAModel': {},
}


def shrink(cfg: Config) -> None:
    """Make a config tiny: two updates on small images or short sentences, with few channels.

    Training ends after two updates, or after an epoch of the tiny data sets, with one validation at the end. The
    learning rate is that of the full schedule.
    """
    is_text = find_task(cfg) == 'text'
    for loader in filter(None, (cfg.train_dataloader, cfg.get('val_dataloader'), cfg.test_dataloader)):
        if 'batch_size' in loader:
            loader.batch_size = min(loader.batch_size, 3 if cfg.default_scope == 'mmengine' else 2)
    if is_text:
        cfg.train_dataloader.batch_sampler.max_tokens = 60
    shorten(cfg)
    for member in cfg.model.get('members', [cfg.model]):
        if member.type in NETWORKS:
            _shrink_sentence_network(member)
        else:
            _shrink_image_network(member)
    # mmcv's deformable convolution takes no map smaller than its kernel.
    factor = 3 if cfg.default_scope == 'mmdet' else 1
    shrink_images(cfg._cfg_dict, (factor * IMAGE[0], factor * IMAGE[1]))


def shorten(cfg: Config) -> None:
    """Let a config train for two updates, or an epoch, and validate, save and log at the end."""
    train = cfg.train_cfg
    if train.type == 'EpochBasedTrainLoop':
        train.max_epochs = train.val_interval = interval = 1
    else:
        interval = 2 * cfg.optim_wrapper.get('accumulative_counts', 1)
        train.max_iters = train.val_interval = interval
    cfg.default_hooks.checkpoint.interval = interval
    cfg.default_hooks.logger.interval = 1


def shrink_images(cfg: Any, scale: tuple[int, int]) -> None:
    """Make the sizes of images, crops and sets of boxes in a part of a config small; drop downloads."""
    pairs = dict(crop_size=(CROP, CROP), size=(CROP, CROP), stride=(CROP - 8, CROP - 8), scale=scale)
    for part in dicts(cfg):
        for key, value in part.items():
            if key in ('pretrained', 'init_cfg') and not str(part.get('type')).startswith('mmattn.SkipThought'):
                part[key] = None
            elif key in pairs and isinstance(value, tuple | list):
                part[key] = pairs[key]
            elif key == 'score_thr':
                part[key] = 0  # an untrained detector is not sure of anything
            elif key in ('nms_pre', 'max_per_img', 'num') and isinstance(value, int):
                part[key] = min(value, 64)  # boxes of a detector


def _shrink_image_network(model: Any) -> None:
    backbone = model.get('backbone', {})
    if 'ResNet' not in backbone.get('type', '') or backbone.get('base_channels', 64) < 64:
        return  # it is small
    backbone.update(base_channels=64, stem_channels=64)
    if model.get('decode_head', {}).get('type') == 'mmattn.UNetBAHead':
        model.decode_head.setdefault('up_channels', (512, 256, 256, 128))
    for part in dicts(model):
        for key in WIDTHS:
            value = part.get(key)
            if isinstance(value, int) and value >= 48:
                part[key] = value // 8
            elif isinstance(value, tuple | list):
                part[key] = [width // 8 for width in value]
    if 'embed_dims' in model:
        model.embed_dims = 32


def _shrink_sentence_network(model: Any) -> None:
    model.update(NETWORKS[model.type])
    if 'question_encoder' in model:
        encoder = model.question_encoder
        encoder.update(embed_dim=8, word_dim=encoder.get('word_dim', 620) // 50)
    if 'head' in model and model.head.type == 'mmattn.FusionHead':
        model.head.update(query_dim=4, value_dim=4, pooled_dim=6, out_dim=5)
    if 'scorer' in model:
        model.scorer.embed_dim = 24
    if 'test_cfg' in model:
        model.test_cfg.max_length = (0, 8) if model.type == 'mmattn.TranslationTransformer' else 8
