"""Projects that stock MMSegmentation trains, each with many things that are unusual and right, for the small config."""

import os
from pathlib import Path

import cv2
import numpy as np
from PIL import Image

from ..frozen.refusals import MASK, Project, write

RNG = np.random.default_rng(1)
TWO = """
for each in (train, val):
    each['metainfo'] = dict(classes=('rest', 'thing'), palette=[[0, 0, 0], [9, 9, 9]])
del each
model['decode_head']['num_classes'] = 2
"""
OWN = "import sys\nsys.path.insert(0, f'{DATA}/..')\ncustom_imports = dict(imports=['own'])\n"


def picture(height=64, width=64):
    return RNG.integers(0, 256, (height, width, 3), np.uint8)


def kinds_of_files(data):
    """Masks with a palette or 16 bits, transparent and misnamed pictures, bytes behind the end, links, junk."""
    images, masks = data / 'img/train', data / 'ann/train'
    palette = Image.fromarray(MASK).convert('P')
    palette.putpalette([0, 0, 0, 255, 0, 0, 0, 255, 0])
    palette.save(masks / 'train_0.png')
    cv2.imwrite(str(masks / 'train_1.png'), MASK.astype(np.uint16))
    Image.fromarray(np.dstack([picture(), MASK * 90])).save(images / 'train_1.png')
    Image.fromarray(picture()).save(images / 'train_2.png', 'JPEG')
    with open(images / 'train_2.png', 'ab') as file:
        file.write(bytes(300))
    cv2.imwrite(str(images / 'train_3.png'), picture().astype(np.uint16) * 257)
    (data / 'elsewhere').mkdir()
    for path in (images / 'train_4.png', masks / 'train_4.png'):
        path.rename(data / 'elsewhere' / f'{path.parent.parent.name}.png')
        path.symlink_to(data / 'elsewhere' / f'{path.parent.parent.name}.png')
    cv2.imwrite(str(images / 'train_5.png'), picture(50, 80))
    cv2.imwrite(str(masks / 'train_5.png'), np.full((50, 80), 2, np.uint8))
    cv2.imwrite(str(data / 'img/val/val_0.png'), picture(70, 40))
    cv2.imwrite(str(data / 'ann/val/val_0.png'), np.ones((70, 40), np.uint8))
    for name in ('img/train/Thumbs.db', 'img/train/.DS_Store', 'img/val/notes.csv', 'ann/train/labels.txt'):
        (data / name).write_bytes(b'x')
    (images / '._train_0.png').write_bytes(b'\0\5\x16\7')


def same_pictures(data):
    """Pictures for validation that are also for training, and copies within the training."""
    for kind in ('img', 'ann'):
        content = (data / f'{kind}/train/train_0.png').read_bytes()
        for name in ('val/val_0', 'train/again'):
            (data / kind / f'{name}.png').write_bytes(content)


def from_one(data):
    """Labels from 1."""
    for path in data.glob('ann/*/*.png'):
        cv2.imwrite(str(path), MASK + 1)


def black_and_white(data):
    for path in data.glob('ann/*/*.png'):
        cv2.imwrite(str(path), (MASK > 0) * np.uint8(255))


def lists(data):
    """Names in files, in a read-only folder that is a link."""
    for part, count in (('train', 4), ('val', 2)):
        (data / f'{part}.txt').write_text('\n'.join(f'{part}_{i}' for i in range(count)))
    real = data.rename(data.with_name('real'))
    data.symlink_to(real)
    for folder, _, names in os.walk(real):
        for path in (folder, *(os.path.join(folder, name) for name in names)):
            os.chmod(path, 0o555)


def cityscapes(data):
    """Some of the classes of a data set of mmseg, in the folders of its release."""
    for part in ('train', 'val'):
        for i in range(3):
            for kind, suffix, content in (
                ('leftImg8bit', 'leftImg8bit', picture()),
                ('gtFine', 'gtFine_labelTrainIds', MASK),
                ('gtFine', 'gtFine_labelIds', MASK + 7),
                ('gtFine', 'gtFine_color', picture()),
            ):
                path = data / kind / part / f'bonn/bonn_{i}_{suffix}.png'
                path.parent.mkdir(parents=True, exist_ok=True)
                cv2.imwrite(str(path), content)


def arrays(data):
    for path in data.glob('img/*/*.png'):
        np.save(path.with_suffix('.npy'), cv2.imread(str(path)))
        path.unlink()
    for part in ('train', 'val'):
        names = [path.stem for path in sorted((data / 'img' / part).iterdir())]
        (data / f'{part}.csv').write_text(''.join(f'img/{part}/{x}.npy,ann/{part}/{x}.png\n' for x in names))


def alone(data):
    """One picture of training, one of validation."""
    for path in data.glob('*/*/*.png'):
        if not path.stem.endswith('_0'):
            path.unlink()


SETTINGS = """
custom_hooks = [dict(type='EMAHook', momentum=0.01, update_buffers=True), dict(type='Notes', begin_iter=100, note='x'),
                dict(type='EarlyStoppingHook', monitor='mIoU', patience=9)]
model['auxiliary_head'] = dict(model['decode_head'], in_index=2, in_channels=32, channels=8)
model['decode_head']['loss_decode']['class_weight'] = [0.8, 1.0, 1.2]
model['test_cfg'] = dict(mode='slide', crop_size=(32, 32), stride=(21, 21))
train['pipeline'][2:3] = [dict(type='Resize', scale=(48, 48)), dict(type='RandomRotate', prob=0.5, degree=20),
    dict(type='RandomCutOut', prob=0.5, n_holes=1, cutout_shape=(5, 5)), dict(type='RandomCrop', crop_size=(24, 24)),
    dict(type='Pad', size=(32, 32), pad_val=dict(img=0, seg=255))]
val['pipeline'][1:1] = [dict(type='Resize', scale=(48, 48), keep_ratio=True)]
val_dataloader.update(batch_size=2, num_workers=1, persistent_workers=True)
val_evaluator = [dict(type='Agreement', iou_metrics=['mIoU', 'mFscore']), dict(type='Count', prefix='own')]
default_hooks['checkpoint'].update(save_best='agreement', rule='greater')
optim_wrapper['optimizer']['weight_decay'] = 0.0005
optim_wrapper['paramwise_cfg'] = dict(custom_keys={'backbone': dict(lr_mult=0.0, decay_mult=0.0)}, norm_decay_mult=0.0)
param_scheduler = [dict(type='LinearLR', start_factor=1e-6, begin=0, end=1500, by_epoch=False),
                   dict(type='PolyLR', power=0.9, begin=1500, end=160000, by_epoch=False)]
"""
SETTINGS_MODULE = """
from mmengine.evaluator import BaseMetric
from mmengine.hooks import Hook
from mmengine.registry import HOOKS, METRICS
from mmseg.evaluation import IoUMetric

@HOOKS.register_module()
class Notes(Hook):
    def __init__(self, begin_iter, note):
        self.begin_iter, self.note = begin_iter, note

@METRICS.register_module()
class Count(BaseMetric):
    def process(self, data_batch, data_samples):
        self.results.append(len(data_samples))

    def compute_metrics(self, results):
        return dict(count=sum(results))

@METRICS.register_module()
class Agreement(IoUMetric):
    def compute_metrics(self, results):
        return dict(super().compute_metrics(results), agreement=0.5)
"""
TABLE = """
train_dataloader['dataset'] = dict(type='Wrapped', inner=dict(
    type='Table', table=DATA + '/train.csv', backend_args=dict(backend='elsewhere'), pipeline=train['pipeline']))
val_dataloader['dataset'] = dict(type='Table', table=DATA + '/val.csv', pipeline=val['pipeline'])
for each in (train, val):
    each['pipeline'][0] = dict(type='LoadArray')
    each['pipeline'][1]['backend_args'] = dict(backend='elsewhere')
del each
train_cfg = dict(type='Longer', max_iters=4, val_interval=100, extra=1)
"""
TABLE_MODULE = """
from pathlib import Path

import numpy as np
from mmcv.transforms import LoadImageFromFile
from mmengine.fileio import LocalBackend, register_backend
from mmengine.registry import DATASETS, LOOPS, TRANSFORMS
from mmengine.runner import IterBasedTrainLoop
from mmseg.datasets import BaseSegDataset
from torch.utils.data import Dataset

@register_backend('elsewhere')
class Elsewhere(LocalBackend):
    pass

@DATASETS.register_module()
class Table(BaseSegDataset):
    METAINFO = dict(classes=('a', 'b', 'c'), palette=[[0, 0, 0], [255, 0, 0], [0, 255, 0]])

    def __init__(self, table, pipeline, backend_args=None):
        self.table = Path(table)
        super().__init__(pipeline=pipeline, backend_args=backend_args)

    def load_data_list(self):
        rows = [line.split(',') for line in self.table.read_text().splitlines()]
        keys = dict(label_map=None, reduce_zero_label=False)
        return [dict(keys, img_path=f'{self.table.parent}/{a}', seg_map_path=f'{self.table.parent}/{b}', seg_fields=[])
                for a, b in rows]

@DATASETS.register_module()
class Wrapped(Dataset):
    def __init__(self, inner):
        self.inner = DATASETS.build(inner)

    def __len__(self):
        return len(self.inner)

    def __getitem__(self, index):
        return self.inner[index]

@TRANSFORMS.register_module()
class LoadArray(LoadImageFromFile):
    def transform(self, results):
        image = np.load(results['img_path'])
        return dict(results, img=image, img_shape=image.shape[:2], ori_shape=image.shape[:2])

@LOOPS.register_module()
class Longer(IterBasedTrainLoop):
    def __init__(self, runner, dataloader, max_iters, val_interval, extra):
        super().__init__(runner, dataloader, max_iters, val_interval=val_interval)
"""
TWO_OPTIMIZERS = """
model = dict(type='Pixels')
optim_wrapper = dict(constructor='TwoOptimizers')
param_scheduler = dict(weights=[dict(type='PolyLR', power=0.9, begin=0, end=4, by_epoch=False)], biases=[])
"""
TWO_OPTIMIZERS_MODULE = """
import torch
from mmengine.model import BaseModel
from mmengine.optim import OptimWrapper, OptimWrapperDict
from mmengine.registry import MODELS, OPTIM_WRAPPER_CONSTRUCTORS
from mmengine.structures import PixelData
from torch.nn import functional as F

@OPTIM_WRAPPER_CONSTRUCTORS.register_module()
class TwoOptimizers:
    def __init__(self, optim_wrapper_cfg, paramwise_cfg=None):
        pass

    def __call__(self, model):
        parts = dict(weights=[model.layer.weight], biases=[model.layer.bias])
        return OptimWrapperDict(**{name: OptimWrapper(torch.optim.SGD(x, lr=0.01)) for name, x in parts.items()})

@MODELS.register_module()
class Pixels(BaseModel):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Conv2d(3, 3, 1)

    def forward(self, inputs, data_samples=None, mode='tensor'):
        x = self.layer(torch.stack([image.float() / 255 for image in inputs]))
        if mode == 'predict':
            for sample, scores in zip(data_samples, x):
                sample.pred_sem_seg = PixelData(data=scores.argmax(0, keepdim=True))
            return data_samples
        labels = torch.stack([sample.gt_sem_seg.data[0] for sample in data_samples]).long()
        return dict(loss=F.cross_entropy(x, labels, ignore_index=255))

    def train_step(self, data, optim_wrapper):
        loss, log = self.parse_losses(self._run_forward(self.data_preprocessor(data, True), mode='loss'))
        optim_wrapper['weights'].zero_grad(), optim_wrapper['biases'].zero_grad()
        loss.backward()
        optim_wrapper['weights'].step(), optim_wrapper['biases'].step()
        return log
"""
CITYSCAPES = """
for part, each in (('train', train), ('val', val)):
    each.update(type='CityscapesDataset', img_suffix='_leftImg8bit.png', seg_map_suffix='_gtFine_labelTrainIds.png',
                data_prefix=dict(img_path='leftImg8bit/' + part, seg_map_path='gtFine/' + part),
                metainfo=dict(classes=('sidewalk', 'road'), palette=[[1, 1, 1], [2, 2, 2]]))
del part, each
model['decode_head']['num_classes'] = 2
"""
JOINED = """
half = dict(train, data_prefix=dict(img_path='img/val', seg_map_path='ann/val'))
train_dataloader['dataset'] = dict(
    type='RepeatDataset', times=3, dataset=dict(type='ConcatDataset', datasets=[train, half]))
val_dataloader['dataset'] = dict(type='ConcatDataset', datasets=[val])
"""
MOSAIC = """
inner = dict(train, pipeline=train['pipeline'][:2])
train_dataloader['dataset'] = dict(
    type='MultiImageMixDataset', dataset=inner,
    pipeline=[dict(type='RandomMosaic', prob=1, img_scale=(64, 64)), *train['pipeline'][2:]])
train_dataloader.update(num_workers=1, persistent_workers=True)
"""
GREY = """
for each in (train, val):
    each['pipeline'][0]['color_type'] = 'grayscale'
    each['metainfo'] = dict(classes=('a', 'b', 'c'))
del each
model['backbone']['in_channels'] = 1
model['data_preprocessor'].update(mean=[128.0], std=[60.0])
optim_wrapper['optimizer']['lr'] = 0.0
"""
WHITE = """
for each in (train, val):
    each['pipeline'][1]['type'] = 'LoadWhite'
del each
model['decode_head'].update(out_channels=1, threshold=0.3)
model['decode_head']['loss_decode']['use_sigmoid'] = True
"""
WHITE_MODULE = """
from mmengine.registry import TRANSFORMS
from mmseg.datasets.transforms import LoadAnnotations

@TRANSFORMS.register_module()
class LoadWhite(LoadAnnotations):
    def _load_seg_map(self, results):
        super()._load_seg_map(results)
        results['gt_seg_map'] = (results['gt_seg_map'] > 127).astype('uint8')
"""
PROJECTS = dict(
    kinds_of_files=(kinds_of_files, Project()),
    same_pictures=(same_pictures, Project()),
    settings=(None, Project(OWN + SETTINGS, module=SETTINGS_MODULE)),
    from_one=(from_one, Project('train["reduce_zero_label"] = val["reduce_zero_label"] = True\n')),
    white=(black_and_white, Project(OWN + TWO + WHITE, module=WHITE_MODULE)),
    joined=(None, Project(JOINED)),
    mosaic=(None, Project(MOSAIC)),
    lists=(lists, Project('train["ann_file"], val["ann_file"] = "train.txt", "val.txt"\n')),
    cityscapes=(cityscapes, Project(CITYSCAPES)),
    table=(arrays, Project(OWN + TABLE, module=TABLE_MODULE)),
    two_optimizers=(None, Project(OWN + TWO_OPTIMIZERS, module=TWO_OPTIMIZERS_MODULE)),
    grey=(None, Project(GREY)),
    alone=(alone, Project()),
    no_validation=(
        None,
        Project(
            'val_dataloader = val_cfg = val_evaluator = None\ntrain_cfg.pop("val_interval")\n'
            'default_hooks["checkpoint"].pop("save_best")\n'
        ),
    ),
)


def write_project(name, folder):
    """Write a project; return its config."""
    change, project = PROJECTS[name]
    config = write(project, folder)
    if change:
        change(Path(folder, 'data'))
    return config
