"""Check an installed mmattn in an empty folder: what every extra has, and a task of one extra. Used by release.sh.

python check_release.py onedl|openmmlab|det|video|language|export|reproduction
"""

import argparse
import shutil
import subprocess
import sys
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
from mmengine import Config
from mmengine.hub import get_config
from mmengine.registry import MODELS, init_default_scope
from PIL import Image

import mmattn
from mmattn import registry
from mmattn.engine import prepare_for_cpu
from mmattn.ops import library
from mmattn.utils import config_path

BI_CC = 'bi_cc/bi-cc_r18-d8-half_1xb8-50_buildings-256x256.py'
SST = 'sst/sst-grid_r18-d8-half_1xb4-400_davis-240p.py'
DETECTOR = 'attended_residual/faster-rcnn_r50-w16-attn0010_fpn_1xb8-150_bccd-320x240.py'
STOCK = '../ccnet/ccnet_r50-d8_4xb2-80k_cityscapes-769x769.py'
TOOLS = Path(mmattn.__file__).parent / '.mim' / 'tools'
SIZE = (64, 96)  # height, width


def run(*command: str | Path, python: str = sys.executable) -> None:
    print('$ python', *command, flush=True)
    subprocess.run([python, *map(str, command)], check=True)


def draw(path: str, seed: int, labels: bool = False) -> str:
    """Write a random image, or random labels of two classes; return the path."""
    pixels = np.random.default_rng(seed).integers(0, 2 if labels else 256, SIZE if labels else (*SIZE, 3), np.uint8)
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)
    return path


def build(config: str) -> torch.nn.Module:
    """Build a model of the wheel with random weights, and save them as random.pth."""
    cfg = Config.fromfile(config_path(config))
    prepare_for_cpu(cfg)
    init_default_scope(cfg.default_scope)
    torch.manual_seed(0)
    model = MODELS.build(cfg.model).eval()
    torch.save(dict(state_dict=model.state_dict()), 'random.pth')
    return model


def check_package() -> None:
    assert Path(mmattn.__file__).is_relative_to(sys.prefix), mmattn.__file__
    assert mmattn.__version__ == version('mmattn')
    assert library.UNAVAILABLE_REASON is None, library.UNAVAILABLE_REASON
    registry.MODELS.import_from_location()  # every folder whose packages are installed
    assert get_config(f'mmattn::{BI_CC}').to_dict() == Config.fromfile(config_path(BI_CC)).to_dict()
    run('-m', 'mmattn.utils.collect_env')


def check_segmentation() -> None:
    """Build a stock config with our head; train, test and segment an image with the tools of the wheel."""
    stock = Path(import_module('mmseg').__file__).parent / '.mim' / 'configs' / 'ccnet'
    Path('bicc.py').write_text(
        f"_base_ = ['{stock / STOCK}']\nmodel = dict(decode_head=dict(type='mmattn.BiCCHead', window_size=31))\n",
        encoding='utf-8',
    )
    init_default_scope('mmseg')
    MODELS.build({**Config.fromfile('bicc.py').model, 'pretrained': None})
    for part, count in (('train', 8), ('val', 2)):
        for i in range(count):
            draw(f'data/buildings/img_dir/{part}/{i}.png', i)
            draw(f'data/buildings/ann_dir/{part}/{i}.png', i, labels=True)
    config = config_path(BI_CC)
    options = ['train_cfg.max_iters=2', 'train_cfg.val_interval=2', 'default_hooks.checkpoint.interval=2']
    options += ['train_dataloader.batch_size=2', 'train_dataloader.num_workers=0', 'val_dataloader.num_workers=0']
    options += [f'{part}_dataloader.persistent_workers=False' for part in ('train', 'val')]
    run(TOOLS / 'train.py', config, '--work-dir', 'trained', '--cfg-options', *options)
    image = 'data/buildings/img_dir/val/0.png'
    run(TOOLS / 'image_demo.py', image, config, 'trained/iter_2.pth', '--out-dir', 'out')
    assert Image.open('out/pred/0.png').size == SIZE[::-1]


def check_detection() -> None:
    data = dict(inputs=[torch.randint(0, 256, (3, *SIZE), dtype=torch.uint8)], data_samples=[_sample()])
    (prediction,) = build(DETECTOR).test_step(data)
    assert prediction.pred_instances.bboxes.shape[1] == 4


def _sample() -> object:
    structures = import_module('mmdet.structures')
    return structures.DetDataSample(
        metainfo=dict(img_shape=SIZE, ori_shape=SIZE, pad_shape=SIZE, scale_factor=(1.0, 1.0), batch_input_shape=SIZE)
    )


def check_video() -> None:
    """Segment a folder of frames with the command of a user."""
    build(SST)
    for i in range(3):
        draw(f'clip/{i:05}.jpg', i)
    draw('first.png', 0, labels=True)
    command = ['clip', 'first.png', '--config', config_path(SST), '--checkpoint', 'random.pth', '--out', 'followed']
    run(TOOLS / 'video_demo.py', *command)
    assert len(list(Path('followed/masks').glob('*.png'))) == 3


def check_language() -> None:
    """Compute the loss and the gradients of a small translation model, a translation, and BLEU."""
    from mmattn.language.translation.bleu import tokenized_bleu
    from mmattn.language.translation.transformer import TranslationTransformer
    from mmattn.utils.optional import import_optional

    torch.manual_seed(0)
    attention = dict(type='mmattn.BilateralMultiheadAttention', window_size=5)
    model = TranslationTransformer(20, size='tiny', encoder_attention=attention, decoder_attention=attention)
    inputs = {side: torch.randint(4, 20, (2, 6)) for side in ('source', 'target')}
    loss = model(inputs, mode='loss')['loss']
    loss.backward()
    assert all(parameter.grad is not None for parameter in model.parameters() if parameter.requires_grad)
    assert len(model.eval().translate(inputs['source'], max_length=3)) == 2
    for package in ('h5py', 'sacrebleu', 'sacremoses', 'scipy', 'subword_nmt', 'pycocoevalcap'):
        import_optional(package)
    assert round(tokenized_bleu(['the cat sat on the mat'], ['the cat sat on a mat']).score, 4) == 53.7285


def check_export() -> None:
    """Export a network, compare the files with PyTorch, and run one in an environment without PyTorch."""
    build(BI_CC)
    image = draw('image.png', 0)
    config = config_path(BI_CC)
    for suffix in ('onnx', 'pt2'):
        command = ['--format', suffix, '--out', f'network.{suffix}', '--verify', image]
        run(TOOLS / 'deployment' / 'export.py', config, 'random.pth', *command)
    run('-m', 'venv', 'without_torch')
    python = 'without_torch/bin/python'
    run('-m', 'pip', 'install', 'onnxruntime', 'numpy', 'pillow', python=python)
    shutil.copy(TOOLS / 'deployment' / 'run_onnx.py', '.')
    run('run_onnx.py', 'network.onnx', image, '--out-dir', 'out', python=python)
    assert Image.open('out/pred/image.png').size == SIZE[::-1]


def check_reproduction() -> None:
    run(TOOLS / 'reproduce.py', '--list')


CHECKS = dict(
    onedl=check_segmentation,
    openmmlab=check_segmentation,
    det=check_detection,
    video=check_video,
    language=check_language,
    export=check_export,
    reproduction=check_reproduction,
)


def main() -> None:
    parser = argparse.ArgumentParser(description='Check an installed mmattn in an empty folder')
    parser.add_argument('extra', choices=CHECKS)
    task = CHECKS[parser.parse_args().extra]
    check_package()
    task()
    print(f'checked package and {task.__name__.removeprefix("check_")}; torch {torch.__version__}')


if __name__ == '__main__':
    main()
