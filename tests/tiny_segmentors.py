"""A small segmentor of mmseg, not trained, its forward pass by hand, and image files of every kind."""

import numpy as np
import torch
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope
from PIL import Image, ImageOps

CLASSES, PALETTE = ('skin', 'hair', 'nose', 'brows'), [[10, 20, 30], [250, 0, 0], [0, 250, 5], [7, 0, 250]]
MEAN, STD = [120.0, 110.0, 100.0], [60.0, 55.0, 50.0]
ORIENTATION = 0x0112  # of EXIF
TURNED_LEFT = 6  # to be shown a quarter turn to the right


def config(norm='SyncBN'):
    norm = dict(type=norm)
    stage = dict(depth=18, base_channels=4, num_stages=1, out_indices=(0,), strides=(1,), dilations=(1,))
    head = dict(type='FCNHead', num_convs=1, concat_input=False, in_channels=4, in_index=0, channels=8, norm_cfg=norm)
    model = dict(
        type='EncoderDecoder',
        data_preprocessor=dict(type='SegDataPreProcessor', mean=MEAN, std=STD, bgr_to_rgb=True),
        backbone=dict(type='ResNet', norm_cfg=norm, **stage),
        decode_head=dict(head, num_classes=len(CLASSES)),
        test_cfg=dict(mode='whole'),
    )
    pipeline = [dict(type=name) for name in ('LoadImageFromFile', 'LoadAnnotations', 'PackSegInputs')]
    return Config(dict(model=model, test_dataloader=dict(dataset=dict(type='BaseSegDataset', pipeline=pipeline))))


def random_model(cfg=None):
    """The model by itself, which tells classes apart, and as it was saved."""
    init_default_scope('mmseg')
    torch.manual_seed(0)
    model = MODELS.build((cfg or config()).model).eval()
    for weight in model.parameters():
        torch.nn.init.normal_(weight)
    return model


def blocks(height, width, channels=3, seed=0):
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 256, (-(-height // 8), -(-width // 8), channels), np.uint8)
    return coarse.repeat(8, 0).repeat(8, 1)[:height, :width].squeeze()


def write_images(folder):
    """Images of different sizes and kinds."""
    path = folder / 'images'
    path.mkdir()
    Image.fromarray(blocks(40, 56)).save(path / 'even.png')
    Image.fromarray(blocks(33, 47)).save(path / 'odd.ppm')
    Image.fromarray(blocks(40, 56, seed=2)).save(path / 'even, too.png')
    Image.fromarray(blocks(1, 9)).save(path / 'thin.bmp')
    Image.fromarray(blocks(1, 1)[None, None]).save(path / 'tiny.PNG')
    Image.fromarray(blocks(31, 64, 1)).save(path / 'gray.png')
    Image.fromarray(blocks(50, 21, 4)).save(path / 'rgba.png')
    turned = Image.fromarray(blocks(24, 61))
    exif = turned.getexif()
    exif[ORIENTATION] = TURNED_LEFT
    turned.save(path / 'turned.jpg', quality=95, subsampling=0, exif=exif)
    (path / '.hidden').write_text('no image')
    (path / 'deeper').mkdir()
    return path


def shown(path):
    """The image as a viewer shows it: uint8 ``(H, W, 3)``, RGB, without its alpha."""
    return np.array(ImageOps.exif_transpose(Image.open(path)).convert('RGB'))


@torch.no_grad()
def argmax(model, image, mean=MEAN, std=STD):
    x = torch.from_numpy((image.astype(float) - mean) / std).float()
    logits = model.decode_head(model.backbone(x.permute(2, 0, 1)[None]))
    return torch.nn.functional.interpolate(logits, image.shape[:2], mode='bilinear')[0].argmax(0).numpy()


def spoil(folder):
    """Add files that cannot be read; return their names, in order."""
    (folder / 'notes.png').write_text('no image')
    (folder / 'empty.png').write_bytes(b'')
    for name in ('even.png', 'turned.jpg', 'odd.ppm'):
        content = (folder / name).read_bytes()
        (folder / f'cut_{name}').write_bytes(content[: len(content) * 2 // 3])
    damaged = bytearray((folder / 'rgba.png').read_bytes())
    damaged[len(damaged) // 2] ^= 255
    (folder / 'damaged.png').write_bytes(damaged)
    (folder / 'folder.png').mkdir()
    (folder / 'link.png').symlink_to(folder / 'nowhere.png')
    Image.fromarray(np.ones((4, 4), np.float32)).save(folder / 'float.tif')
    return ['cut_even', 'cut_odd', 'cut_turned', 'damaged', 'empty', 'float', 'folder', 'link', 'notes']
