"""Rows that are not trained, for video object segmentation: the bar for those that are."""

from collections.abc import Callable, Sequence

from mmengine.config import Config
from mmengine.dataset import pseudo_collate
from mmengine.model import initialize
from mmengine.registry import init_default_scope
from mmengine.structures import PixelData

from mmattn.registry import DATASETS, METRICS, MODELS
from mmattn.video import LabelPropagation

from .results import Result
from .task import ProtocolError, find_metrics, find_task
from .units import score_sample


def repeat_first_mask(cfg: Config, clips: list) -> list:
    """Return clips whose first mask is predicted for all frames."""
    for clip in clips:
        clip.pred_masks = PixelData(data=clip.given[0].expand(len(clip.frames), -1, -1))
    return clips


def propagate_labels(cfg: Config, clips: list) -> list:
    """Return clips segmented by label propagation with the weights from which the config's backbone starts."""
    model = label_propagation(cfg)
    return [model.test_step(pseudo_collate([dict(data_samples=clip)]))[0] for clip in clips]


def label_propagation(cfg: Config) -> LabelPropagation:
    """Return label propagation by the backbone of a config, with the weights from which it starts."""
    backbone = cfg.model.backbone.get('backbone', cfg.model.backbone)  # within a frozen one
    parts = {key: cfg.model[key] for key in ('data_preprocessor', 'test_cfg')}
    model = MODELS.build(dict(type='mmattn.LabelPropagation', backbone=backbone, **parts))
    initialize(model.backbone, backbone.init_cfg)  # init_weights() would log every weight
    return model.eval()


UNTRAINED: dict[str, Callable[[Config, list], list]] = {
    'first mask': repeat_first_mask,
    'label propagation': propagate_labels,
}


def check_untrained(names: Sequence[str], cfg: Config) -> None:
    """Check that rows fit a config."""
    if names and find_task(cfg) != 'video':
        raise ProtocolError('--untrained is for video object segmentation')
    if 'label propagation' in names and 'init_cfg' not in cfg.model.backbone.get('backbone', cfg.model.backbone):
        raise ProtocolError('--untrained label propagation requires --pretrained')


def test_untrained(name: str, cfg: Config) -> Result:
    """Return the scores of a row on the test clips of a config; see :data:`UNTRAINED`."""
    init_default_scope(cfg.default_scope)
    dataset = DATASETS.build(cfg.test_dataloader.dataset)
    clips = UNTRAINED[name](cfg, [item['data_samples'] for item in dataset])
    metric = METRICS.build(cfg.test_evaluator)
    metric.dataset_meta = dataset.metainfo
    metric.process({}, [clip.to_dict() for clip in clips])
    _, keys, factor = find_metrics(cfg)
    samples = {clip.clip: score_sample(metric, result, next(iter(keys))) for clip, result in zip(clips, metric.results)}
    scores = metric.evaluate(len(clips))
    return Result({name: factor * scores[key] for key, name in keys.items()}, samples=samples)
