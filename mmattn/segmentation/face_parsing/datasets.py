"""Face-parsing data sets, in the layout that ``tools/dataset_converters`` writes."""

from mmseg.datasets import BaseSegDataset

from mmattn.registry import DATASETS

HELEN = {
    'background': [0, 0, 0],
    'skin': [255, 205, 160],
    'left_brow': [130, 0, 20],
    'right_brow': [235, 60, 50],
    'left_eye': [0, 0, 230],
    'right_eye': [0, 170, 255],
    'nose': [0, 150, 60],
    'upper_lip': [255, 0, 255],
    'inner_mouth': [255, 240, 0],
    'lower_lip': [140, 0, 160],
    'hair': [120, 90, 60],
}


@DATASETS.register_module()
class HELENDataset(BaseSegDataset):
    """HELEN with the 11 labels of Smith et al. (2013), in the order of their release.

    Left and right are as in the release. A horizontal flip must swap them: augment with
    ``dict(type='RandomFlip', prob=0.5, swap_seg_labels=[(2, 3), (4, 5)])``. The arguments are as in mmseg's
    ``BaseSegDataset``.

    Example:
        >>> dataset = HELENDataset(data_root='data/helen', lazy_init=True)
        >>> dataset.metainfo['classes'][:3]
        ('background', 'skin', 'left_brow')
    """

    METAINFO = dict(classes=(*HELEN,), palette=[*HELEN.values()])


@DATASETS.register_module()
class LFWPLDataset(BaseSegDataset):
    """LFW-PL, the part labels of Kae et al. (2013), with the colours of the release.

    The release defines colours, not label numbers. mmattn uses background 0, skin 1, hair 2. The arguments are as in
    mmseg's ``BaseSegDataset``.

    Example:
        >>> dataset = LFWPLDataset(data_root='data/lfw_pl', lazy_init=True)
        >>> dataset.metainfo['classes']
        ('background', 'skin', 'hair')
    """

    METAINFO = dict(classes=('background', 'skin', 'hair'), palette=[[0, 0, 255], [0, 255, 0], [255, 0, 0]])
