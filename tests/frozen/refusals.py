"""Projects that stock MMSegmentation trains, and commit 35ee0772 refused: changes of a small one's config and files."""

from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np

CONFIG = """
default_scope = 'mmseg'
log_processor = dict(by_epoch=False)
norm_cfg = dict(type='BN')
model = dict(
    type='EncoderDecoder',
    data_preprocessor=dict(type='SegDataPreProcessor', size=(32, 32), pad_val=0, seg_pad_val=255),
    backbone=dict(type='ResNetV1c', depth=18, base_channels=8, norm_cfg=norm_cfg),
    decode_head=dict(
        type='FCNHead', in_channels=64, in_index=3, channels=16, num_convs=1, concat_input=False, num_classes=3,
        norm_cfg=norm_cfg, loss_decode=dict(type='CrossEntropyLoss')),
    test_cfg=dict(mode='whole'))
load = [dict(type='LoadImageFromFile'), dict(type='LoadAnnotations')]
train, val = (
    dict(
        type='BaseSegDataset', data_root=DATA, img_suffix='.png', seg_map_suffix='.png',
        metainfo=dict(classes=('a', 'b', 'c'), palette=[[0, 0, 0], [255, 0, 0], [0, 255, 0]]),
        data_prefix=dict(img_path=f'img/{part}', seg_map_path=f'ann/{part}'), pipeline=pipeline)
    for part, pipeline in (
        ('train', [*load, dict(type='RandomCrop', crop_size=(32, 32)), dict(type='PackSegInputs')]),
        ('val', [*load, dict(type='PackSegInputs')])))
train_dataloader = dict(batch_size=2, num_workers=0, sampler=dict(type='InfiniteSampler', shuffle=True), dataset=train)
val_dataloader = dict(batch_size=1, num_workers=0, sampler=dict(type='DefaultSampler', shuffle=False), dataset=val)
val_evaluator = dict(type='IoUMetric', iou_metrics=['mIoU'])
train_cfg = dict(type='IterBasedTrainLoop', max_iters=4, val_interval=4)
val_cfg = dict(type='ValLoop')
optim_wrapper = dict(type='OptimWrapper', optimizer=dict(type='SGD', lr=0.01, momentum=0.9))
default_hooks = dict(
    checkpoint=dict(type='mmattn.CheckpointHook', by_epoch=False, interval=4, save_best='mIoU'),
    logger=dict(type='LoggerHook', interval=1, log_metric_by_epoch=False))
"""
EPOCHS = """
train_cfg = dict(type='EpochBasedTrainLoop', max_epochs=EPOCHS, val_interval=EPOCHS)
train_dataloader.update(batch_size=6, sampler=dict(type='DefaultSampler', shuffle=True))
default_hooks['checkpoint'].update(by_epoch=True, interval=EPOCHS)
log_processor = dict(by_epoch=True)
"""
LOOP = """
from mmengine.registry import LOOPS
from mmengine.runner import BaseLoop

@LOOPS.register_module()
class MyLoop(BaseLoop):
    max_epochs, epoch = 1, 0

    def __init__(self, runner, dataloader, max_iters):
        super().__init__(runner, dataloader)
        self.max_iters, self.iter = max_iters, 0

    def run(self):
        self.runner.call_hook('before_train')
        self.runner.call_hook('before_train_epoch')
        for self.iter, batch in zip(range(self.max_iters), self.dataloader):
            self.runner.call_hook('before_train_iter', batch_idx=self.iter, data_batch=batch)
            outputs = self.runner.model.train_step(batch, optim_wrapper=self.runner.optim_wrapper)
            self.runner.call_hook('after_train_iter', batch_idx=self.iter, data_batch=batch, outputs=outputs)
        self.runner.call_hook('after_train_epoch')
        self.runner.val_loop.run()
        self.runner.call_hook('after_train')
"""


@dataclass
class Project:
    config: str = ''  # what is added to it
    files: dict | None = None  # arrays, or a copy of a file without its last bytes, beside the sound ones
    module: str = ''  # own.py


MASK = np.repeat(np.uint8([0, 1, 2]), [21, 21, 22])[:, None].repeat(64, 1)
PROJECTS = dict(
    sound=Project(),
    own_loop=Project(
        'import sys\n'
        "sys.path.insert(0, f'{DATA}/..')\n"
        "custom_imports = dict(imports=['own'])\n"
        "train_cfg = dict(type='MyLoop', max_iters=4)\n",
        module=LOOP,
    ),
    picture_of_another_kind=Project(files={'img/train/overview.jpg': np.zeros((64, 64, 3), np.uint8)}),
    masks_of_images_left_out=Project(files={f'ann/train/unused_{i}.png': MASK for i in range(3)}),
    coloured_masks_beside=Project(
        files={f'ann/train/train_{i}_color.png': np.dstack([MASK * 80] * 3) for i in range(3)}
    ),
    wholly_ignored_mask=Project(files={'ann/train/train_5.png': np.full_like(MASK, 255)}),
    one_class_by_sigmoid=Project(
        """
for each in (train, val):
    each.update(metainfo=dict(classes=('background', 'thing'), palette=[[0, 0, 0], [9, 9, 9]]), data_root=DATA + '/two')
model['decode_head'].update(num_classes=1, threshold=0.5, loss_decode=[
    dict(type='CrossEntropyLoss', use_sigmoid=True), dict(type='DiceLoss', loss_weight=3.0)])
del each
""",
        {
            f'two/{kind}/{part}/{part}_{i}.png': MASK.clip(0, 1) if kind == 'ann' else np.full((64, 64, 3), 9 * i + j)
            for j, part in enumerate(('train', 'val'))
            for kind in ('img', 'ann')
            for i in range(6)
        },
    ),
    classes_in_two_spellings=Project(
        "for each in (train, val):\n    each['metainfo']['CLASSES'] = ('a', 'b', 'c')\ndel each\n"
    ),
    palette_with_alpha=Project(
        "for each in (train, val):\n    each['metainfo']['palette'] = [[i, i, i, 255] for i in range(3)]\ndel each\n"
    ),
    exponential_schedule=Project(
        EPOCHS.replace('EPOCHS', '60') + "param_scheduler = [dict(type='ExponentialLR', gamma=0.75, by_epoch=True)]\n"
    ),
    steps_in_schedule=Project(
        EPOCHS.replace('EPOCHS', '20')
        + "param_scheduler = [dict(type='StepLR', step_size=2, gamma=0.1, by_epoch=True)]\n"
    ),
    jpeg_without_its_end=Project("for each in (train, val):\n    each['img_suffix'] = '.jpg'\ndel each\n"),
)


def write(project, folder):
    """Write a project: six images of training, three of validation. Return its config."""
    rng = np.random.default_rng(0)
    suffix = '.jpg' if '.jpg' in project.config else '.png'
    files = {
        f'{kind}/{part}/{part}_{i}{suffix if kind == "img" else ".png"}': content
        for part, count in (('train', 6), ('val', 3))
        for i in range(count)
        for kind, content in (('img', rng.integers(0, 256, (64, 64, 3), np.uint8)), ('ann', MASK))
    }
    for name, content in {**files, **(project.files or {})}.items():
        path = Path(folder, 'data', name)
        path.parent.mkdir(parents=True, exist_ok=True)
        cv2.imwrite(str(path), content)
        if suffix == '.jpg' and name == 'img/train/train_3.jpg':
            path.write_bytes(path.read_bytes()[:-2])  # decoders do not need the last marker
    Path(folder, 'own.py').write_text(project.module)
    path = Path(folder, 'config.py')
    path.write_text(f'DATA = {str(Path(folder, "data"))!r}\n{CONFIG}{project.config}')
    return path
