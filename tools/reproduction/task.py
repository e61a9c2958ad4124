"""What a config says of its run: task, length, size of the inputs, metrics."""

from typing import Any

from mmengine.config import Config

from analysis_tools import get_flops
from mmattn.utils.component_type import inner_data_sets, type_name

UNITS = dict(iter='iterations', epoch='epochs')
SENTENCES = (25, 25)  # lengths of source and target for which operations are counted
CAPTIONS = (36, 16)  # the same for captions: regions and words
PHRASES = (32, 20)  # the same for phrases in captions
QUESTIONS = (36, 14)  # the same for questions
SENTENCE_TASKS = 'text', 'captions', 'grounding', 'questions'
# Metrics of an evaluator: its task, names of its metrics by key in the log, and factor to percent.
METRICS: dict[str, tuple[str, dict[str, str], float]] = {
    'IoUMetric': ('mmseg', {name: name for name in ('mIoU', 'mAcc', 'aAcc')}, 1),
    'mmattn.ForegroundIoUMetric': (
        'mmseg',
        {name: name for name in ('mIoU', 'mAcc', 'aAcc', 'mIoU_foreground', 'mAcc_foreground')},
        1,
    ),
    'mmattn.FaceParsingMetric': ('mmseg', {'overall': 'overall', 'accuracy': 'accuracy'}, 1),
    'CocoMetric': ('mmdet', {'coco/bbox_mAP': 'mAP', 'coco/bbox_mAP_50': 'AP50'}, 100),
    'VOCMetric': ('mmdet', {'pascal_voc/mAP': 'mAP', 'pascal_voc/AP50': 'AP50', 'pascal_voc/AP75': 'AP75'}, 100),
    'mmattn.VOSMetric': ('video', {'JF': 'J&F', 'J': 'J', 'F': 'F'}, 1),
    'mmattn.BLEU': ('text', {'BLEU': 'BLEU', 'sacreBLEU': 'sacreBLEU'}, 1),
    'mmattn.CaptionMetric': (
        'captions',
        {name: name for name in ('CIDEr-D', 'BLEU-4', 'METEOR', 'ROUGE-L', 'BLEU-1')},
        1,
    ),
    'mmattn.PhraseRecall': ('grounding', {name: name for name in ('R@1', 'R@5', 'R@10', 'upper bound')}, 1),
    'mmattn.VQAAccuracy': ('questions', {name: name for name in ('accuracy', 'raw accuracy')}, 1),
}
# Metrics that write the scores of each sample to scores.json.
BY_SAMPLE = ('CaptionMetric', 'VQAAccuracy', 'PhraseRecall')


class ProtocolError(ValueError):
    """A request that cannot be run."""


class NoTruthError(ProtocolError):
    """A test whose answers are not public, so that another data set is to be chosen."""


def find_task(cfg: Config) -> str:
    """Return the task of a row's config: 'mmseg', 'mmdet', 'video', 'text', 'captions', 'grounding' or 'questions'."""
    if cfg.default_scope != 'mmengine':
        return cfg.default_scope
    model = cfg.model.get('members', [cfg.model])[0]
    if 'vocab_size' not in model:
        return 'video'
    if model.type == 'mmattn.PhraseGrounder':
        return 'grounding'
    if 'num_answers' in model:
        return 'questions'
    return 'captions' if 'num_features' in model else 'text'


def length(cfg: Config) -> tuple[int, str]:
    """Return the length of training and its unit, 'epoch' or 'iter'."""
    if cfg.train_cfg.get('type') == 'EpochBasedTrainLoop' or cfg.train_cfg.get('by_epoch'):
        return cfg.train_cfg.max_epochs, 'epoch'
    return cfg.train_cfg.max_iters, 'iter'


def input_size(cfg: Config) -> tuple[int, int]:
    """Return height and width of the training crops, or of the resized training images; for text, two lengths."""
    lengths = dict(text=SENTENCES, captions=CAPTIONS, grounding=PHRASES, questions=QUESTIONS).get(find_task(cfg))
    if lengths is not None:
        return lengths
    size = get_flops.input_size(cfg)
    if size is None:
        raise ProtocolError('the size of the training images is not defined: the config neither crops nor resizes them')
    return size


def input_words(cfg: Config) -> str:
    height, width = input_size(cfg)
    regions = '{0} regions and {1} words'
    formats = dict(text='{0} source and {1} target tokens', captions=regions, grounding=regions)
    formats['questions'] = '64×64 pixels and {1} words' if 'image_encoder' in cfg.model else regions
    return formats.get(find_task(cfg), '{1}×{0}').format(height, width)


def find_metrics(cfg: Config) -> tuple[str, dict[str, str], float]:
    """Return task, metrics (names by key in the log) and factor to percent of a config's evaluator.

    In the config, a list of one evaluator is replaced by it.
    """
    for key in ('val_evaluator', 'test_evaluator'):
        if isinstance(cfg.get(key), list | tuple):
            if len(cfg[key]) != 1:
                raise ProtocolError(f'{key} must be one metric; got {", ".join(map(type_name, cfg[key])) or "none"}')
            (cfg[key],) = cfg[key]
    evaluator: Any = cfg.get('test_evaluator') or {}
    known = {type_name(dict(type=name)): name for name in METRICS}
    if (kind := type_name(evaluator, 'none')) not in known:
        raise ProtocolError(f'test_evaluator must be one of {", ".join(METRICS)}; got {kind}')
    if cfg.get('val_evaluator') is None:
        (dataset, *_) = inner_data_sets(cfg.test_dataloader.dataset)
        raise NoTruthError(
            f'the ground truth of the test images in {dataset.data_root} is not public: '
            'tools/test.py --out writes the answers for its server'
        )
    task, keys, factor = METRICS[known[kind]]
    columns = evaluator.get('columns')
    return task, {key: name for key, name in keys.items() if columns is None or key in columns}, factor


def has_own_test(cfg: Config) -> bool:
    """Whether a config is tested on other samples than it is validated on, so that the validation may choose."""
    return cfg.get('val_evaluator') is not None and _samples(cfg.val_dataloader) != _samples(cfg.test_dataloader)


def _samples(loader: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in loader['dataset'].items() if key not in ('pipeline', 'test_mode')}


def is_tested_apart(cfg: Config) -> bool:
    """Whether the test differs from the last validation, in its samples, what is made of them, or the metric."""
    return cfg.get('val_evaluator') != cfg.test_evaluator or cfg.val_dataloader.dataset != cfg.test_dataloader.dataset


def writes_samples(cfg: Config) -> bool:
    return type_name(cfg.test_evaluator) in BY_SAMPLE
