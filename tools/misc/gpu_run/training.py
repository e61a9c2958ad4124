"""The parts train and capture: iterations of MMSegmentation, and layers as CUDA graphs and compiled."""

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import alternatives  # tools/benchmarks
import mmseg.models.decode_heads.cc_head as cc_head
import numpy as np
import torch
from findings import DEVICE, GPU, SMALL, difference, guarded, record, run_groups, times
from mmengine.config import Config
from mmengine.dataset import InfiniteSampler, pseudo_collate
from mmengine.hooks import Hook
from mmengine.runner import Runner
from mmengine.structures import PixelData
from mmseg.structures import SegDataSample
from torch import Tensor, nn

from mmattn import layers
from mmattn.engine import enable_amp, log_operators, prepare_for_cpu
from mmattn.ops import dispatch
from mmattn.utils import config_path, profiling

SEGMENTATION = ((769, 769), 2)  # size of the images, and of a batch
FACES = ((224, 224), 12)
NETWORKS = {  # config, images, backends
    'NL': ('bi_nl/nl_r50-d8_4xb2-80k_cityscapes-769x769.py', SEGMENTATION, ('composition',)),
    'Bi-NL': (
        'bi_nl/bi-nl_r50-d8_4xb2-80k_cityscapes-769x769.py',
        SEGMENTATION,
        ('composition', 'global_attention=triton'),
    ),
    'CC': ('bi_cc/cc_r50-d8_4xb2-80k_cityscapes-769x769.py', SEGMENTATION, ('composition',)),
    'Bi-CC': (
        'bi_cc/bi-cc_r50-d8_4xb2-80k_cityscapes-769x769.py',
        SEGMENTATION,
        ('composition', 'auto', 'grid_attention=native'),
    ),
    'U-Net': ('unet_ba/unet_r18-d8_1xb12-100e_lfw-pl-224x224.py', FACES, ('composition',)),
    'U-Net-BA': (
        'unet_ba/unet-ba_r18-d8_1xb12-100e_lfw-pl-224x224.py',
        FACES,
        ('composition', 'auto'),
    ),
}
ITERATIONS = 1 if SMALL else 12


def run_train(seconds: float) -> None:
    """Iterations of mmengine's Runner with AMP, on drawn images: ms, peak memory, losses."""
    groups = [(title, backend) for title, (*_, backends) in NETWORKS.items() for backend in backends]
    run_groups('train', _train, [x for x in groups if GPU or x[1] == 'composition'], seconds)


class Drawn(torch.utils.data.Dataset):
    """Images of coloured squares, each a class, with noise."""

    def __init__(self, size: tuple[int, int], classes: int) -> None:
        self.size, self.classes = size, classes
        names, colours = [str(i) for i in range(classes)], [[i, i, i] for i in range(classes)]
        self.metainfo = dict(classes=names, palette=colours)

    def __len__(self) -> int:
        return 64

    def __getitem__(self, i: int) -> dict[str, Any]:
        rng, (height, width) = np.random.default_rng(i), self.size
        squares = rng.integers(0, self.classes, (height // 16 + 1, width // 16 + 1))
        labels = np.kron(squares, np.ones((16, 16), int))[:height, :width]
        image = labels * (255 // self.classes) + rng.normal(0, 10, (3, *self.size))
        shapes = dict(img_shape=self.size, ori_shape=self.size, pad_shape=self.size)
        sample = SegDataSample(
            gt_sem_seg=PixelData(data=torch.from_numpy(labels)[None].long()),
            metainfo=dict(**shapes, scale_factor=(1.0, 1.0), flip=False),
        )
        return dict(inputs=torch.from_numpy(image.clip(0, 255).astype(np.uint8)), data_samples=sample)


class Watch(Hook):
    """Collects the ms and the loss of each iteration."""

    priority = 'LOWEST'

    def __init__(self) -> None:
        self.times: list[float] = []
        self.losses: list[float] = []

    def before_train_iter(self, *_: Any, **__: Any) -> None:
        profiling.synchronize()
        self.start = time.perf_counter()

    def after_train_iter(self, *_: Any, outputs: Any = None, **__: Any) -> None:
        profiling.synchronize()
        self.times.append(1e3 * (time.perf_counter() - self.start))
        self.losses.append(outputs['loss'].item())


def config(title: str) -> Config:
    """Read the config of a network, without pretrained weights, for drawn images and AMP."""
    name, (size, _), _ = NETWORKS[title]
    cfg = Config.fromfile(config_path(name))
    cfg.model.pop('pretrained', None)
    cfg.model.backbone.init_cfg = None
    if SMALL and cfg.model.backbone.get('depth') == 50:
        cfg.model.backbone.update(base_channels=8, stem_channels=8)
        cfg.model.decode_head.update(in_channels=256, channels=16)
        cfg.model.auxiliary_head.update(in_channels=128, channels=16)
    elif SMALL:
        cfg.model.backbone.update(base_channels=8, stem_channels=8)
        cfg.model.decode_head.update(in_channels=(8, 8, 16, 32, 64), up_channels=(64, 32, 16, 16))
    cfg.model.data_preprocessor.size = (65, 65) if SMALL else size  # smaller images would be padded
    enable_amp(cfg.optim_wrapper)
    if not GPU:
        cfg.optim_wrapper.dtype = 'bfloat16'
        prepare_for_cpu(cfg)
    cfg.train_cfg = dict(type='IterBasedTrainLoop', max_iters=ITERATIONS, val_interval=10**9)
    cfg.default_hooks = dict(
        timer=dict(type='IterTimerHook'),
        logger=dict(type='LoggerHook', interval=10**6, log_metric_by_epoch=False),
        param_scheduler=dict(type='ParamSchedulerHook'),
        checkpoint=None,
        sampler_seed=None,
    )
    return cfg


def _train(group: tuple[str, str]) -> None:
    title, backend = group
    with guarded('train', title=title, backend=backend), tempfile.TemporaryDirectory() as folder:
        if cc_head.CrissCrossAttention is None:  # mmcv without compiled operators
            cc_head.CrissCrossAttention = alternatives.criss_cross_attention()
        cfg = config(title)
        data = Drawn(cfg.model.data_preprocessor.size, cfg.model.decode_head.num_classes)
        batch = 2 if SMALL else NETWORKS[title][1][1]
        loader = torch.utils.data.DataLoader(
            data,
            batch_size=batch,
            num_workers=6 if GPU else 0,
            sampler=InfiniteSampler(data, shuffle=False),
            collate_fn=pseudo_collate,
        )
        watch = Watch()
        runner = Runner(
            model=cfg.model,
            work_dir=folder,
            train_dataloader=loader,
            train_cfg=cfg.train_cfg,
            optim_wrapper=cfg.optim_wrapper,
            default_hooks=cfg.default_hooks,
            custom_hooks=[watch],
            default_scope='mmseg',
            env_cfg=cfg.get('env_cfg') or {},
            log_level='WARNING',
            randomness=dict(seed=0),
            experiment_name=Path(folder).name,
        )
        log_operators()
        if GPU:
            torch.cuda.reset_peak_memory_stats()
        with dispatch.backend(backend):
            runner.train()
        record(
            'train',
            title=title,
            backend=backend,
            ok=bool(np.isfinite(watch.losses).all()),
            ms=round(statistics.median(watch.times[len(watch.times) // 3 :]), 2),
            first_ms=round(watch.times[0], 1),
            losses=[round(x, 3) for x in watch.losses[:: max(1, ITERATIONS // 3)]],
            peak_mib=round(torch.cuda.max_memory_allocated() / 2**20) if GPU else None,
        )
    if GPU:
        torch.cuda.empty_cache()


def run_capture(seconds: float) -> None:
    """A training step of a layer, captured as a CUDA graph, and compiled."""
    run_groups('capture', _capture, ['BA', 'Bi-NL', 'Bi-CC', 'SST (Strided)'], seconds)


def _capture(name: str) -> None:
    channels, side = (32, 9) if SMALL else (256, 65)
    torch.manual_seed(0)
    layer: nn.Module
    if name == 'SST (Strided)':
        layer, x = layers.StridedAttention3d(channels), torch.randn(1, 4, 16, 16, channels, device=DEVICE)
        more = {'frame_numbers': torch.arange(4, device=DEVICE)[None]}
    else:
        layer = {
            'BA': layers.LocalBilateralAttention,
            'Bi-NL': layers.BilateralNonLocal2d,
            'Bi-CC': layers.BilateralCrissCrossAttention,
        }[name](channels, **({} if name == 'BA' else {'window_size': 15}))
        x, more = torch.randn(2, channels, side, side, device=DEVICE), {}
    layer.to(DEVICE)
    x.requires_grad_()

    wanted = dict(x=x, **dict(layer.named_parameters()))

    def step(call: Callable[..., Tensor] = layer) -> dict[str, Tensor]:
        out = call(x, **more)
        grads = torch.autograd.grad(out.square().mean(), [*wanted.values()], allow_unused=True)
        return {name: y for name, y in zip(('output', *wanted), (out.detach(), *grads)) if y is not None}

    with guarded('capture', layer=name, how='eager'):
        expected = step()
        record('capture', layer=name, how='eager', **times(step))
    if GPU:
        with guarded('capture', layer=name, how='graph'):
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):
                for _ in range(3):
                    step()
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                actual = step()
            graph.replay()
            torch.cuda.synchronize()
            error = difference(actual, expected)
            record('capture', layer=name, how='graph', ok=error < 1e-3, off=error, **times(graph.replay))
    with guarded('capture', layer=name, how='compile'):
        start = time.monotonic()
        # A rehearsal traces the graphs, but generates no code of them.
        compiled = torch.compile(layer, dynamic=False, fullgraph=True, backend='eager' if SMALL else 'inductor')
        error = difference(step(compiled), expected)
        fields = {'compile_s': round(time.monotonic() - start, 1), **times(lambda: step(compiled))}
        record('capture', layer=name, how='compile', ok=error < 1e-2, off=error, **fields)
