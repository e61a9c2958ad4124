"""Small images in the layouts of the data sets that the shipped configs name."""
import numpy as np
from PIL import Image

SIZE = (48, 40)  # width, height


def _pair(image_path, label_path, classes, seed):
    rng = np.random.default_rng(seed)
    labels = np.kron(rng.integers(0, classes, (5, 6)), np.ones((8, 8), int)).astype(np.uint8)
    image = (labels[..., None] * 255 // classes + rng.integers(0, 20, (*labels.shape, 3))).clip(0, 255).astype(np.uint8)
    labels[0, :3] = 255
    for path, array in ((image_path, image), (label_path, labels)):
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(array).save(path)


def folders(root, suffix, classes, train=4, val=2, test=0):
    """mmseg's img_dir/ann_dir layout."""
    for part, count in (('train', train), ('val', val), ('test', test)):
        for i in range(count):
            _pair(root / 'img_dir' / part / f'tile_{i}{suffix}', root / 'ann_dir' / part / f'tile_{i}.png', classes, i)


def cityscapes(root):
    """Cityscapes' layout, labels as its converter writes them."""
    for part, count in (('train', 4), ('val', 2)):
        for i in range(count):
            name = f'town/town_{i:06}_000019'
            _pair(root / 'leftImg8bit' / part / f'{name}_leftImg8bit.png',
                  root / 'gtFine' / part / f'{name}_gtFine_labelTrainIds.png', 19, i)


def ade20k(root):
    """ADE20K's layout: label 0 is ignored."""
    for part, count in (('training', 4), ('validation', 2)):
        for i in range(count):
            _pair(root / 'images' / part / f'ADE_{i}.jpg', root / 'annotations' / part / f'ADE_{i}.png', 151, i)


def make_all(root):
    """Return the environment that points every data set of the configs to small images under ``root``."""
    folders(root / 'buildings', '.png', 2)
    folders(root / 'camvid', '.jpg', 11)
    folders(root / 'fasseg', '.jpg', 6)
    for name, classes in (('helen', 11), ('lfw_pl', 3)):
        for aligned in ('', '_aligned'):
            folders(root / f'{name}{aligned}', '.jpg', classes, test=2)
    cityscapes(root / 'cityscapes')
    ade20k(root / 'ade20k')
    return {f'{folder.name.upper()}_ROOT': str(folder) for folder in root.iterdir()}
