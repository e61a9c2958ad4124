"""The Python of the README is run or built; links and commands of all pages lead somewhere."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from mmengine.config import Config

from . import tiny_data

ROOT = Path(__file__).parents[1]
README = (ROOT / 'README.md').read_text()
SNIPPETS = re.findall(r'```python\n(.*?)```', README, re.DOTALL)


def test_the_config_for_own_data_trains(tmp_path):
    (snippet,) = (text for text in SNIPPETS if 'data/mine' in text)
    (tmp_path / 'my_config.py').write_text(snippet)
    tiny_data.folders(tmp_path / 'data/mine', '.jpg', 2)
    small = [
        'train_cfg.max_iters=1',
        'train_cfg.val_interval=1',
        'model.pretrained=None',
        'model.backbone.base_channels=8',
        'model.decode_head.in_channels=256',
        'model.decode_head.channels=16',
        'model.auxiliary_head.in_channels=128',
        'model.auxiliary_head.channels=16',
        'train_dataloader.batch_size=2',
    ]
    done = subprocess.run(
        [sys.executable, ROOT / 'tools/train.py', 'my_config.py', '--cfg-options', *small],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r'\|\s+road\s+\|', done.stdout + done.stderr)  # the table of classes
    assert list((tmp_path / 'work_dirs/my_config').glob('*/vis_data/scalars.json'))


def test_a_stock_config_with_our_head_builds(tmp_path):
    import mmseg
    from mmengine.registry import MODELS, init_default_scope

    (snippet,) = (text for text in SNIPPETS if 'ccnet_r50' in text)
    stock = Path(mmseg.__file__).parent / '.mim/configs'
    (tmp_path / 'user.py').write_text(snippet.replace('../ccnet', str(stock / 'ccnet')))
    cfg = Config.fromfile(tmp_path / 'user.py')
    init_default_scope('mmseg')
    model = MODELS.build({**cfg.model, 'pretrained': None})
    assert type(model.decode_head).__module__ == 'mmattn.segmentation.bi_cc_head'
    assert model.decode_head.cca.window_position.window_size == (31, 31)


def test_a_stock_config_with_attention_for_convolutions_builds(tmp_path):
    import mmseg
    from mmengine.registry import MODELS, init_default_scope

    from mmattn.layers import BAConv2d

    (snippet,) = (text for text in SNIPPETS if 'upernet_r50' in text)
    stock = Path(mmseg.__file__).parent / '.mim/configs'
    (tmp_path / 'user.py').write_text(snippet.replace('../upernet', str(stock / 'upernet')))
    cfg = Config.fromfile(tmp_path / 'user.py')
    init_default_scope('mmseg')
    head = MODELS.build(cfg.model.decode_head)
    assert sum(isinstance(module, BAConv2d) for module in head.modules()) == 5  # pyramid, three levels, fusion


def test_a_stock_detector_with_attention_in_its_backbone_builds(tmp_path):
    import mmdet
    from mmengine.registry import MODELS, init_default_scope

    from mmattn.layers import TransformerAttention2d

    (snippet,) = (text for text in SNIPPETS if 'faster-rcnn_r50' in text)
    stock = Path(mmdet.__file__).parent / '.mim/configs'
    (tmp_path / 'user.py').write_text(snippet.replace('../faster_rcnn', str(stock / 'faster_rcnn')))
    cfg = Config.fromfile(tmp_path / 'user.py')
    init_default_scope('mmdet')
    backbone = MODELS.build(cfg.model.backbone)
    assert sum(isinstance(module, TransformerAttention2d) for module in backbone.modules()) == 6 + 3


PAGES = [
    'README.md',
    'CONTRIBUTING.md',
    'docker/README.md',
    'mmattn/ops/README.md',
    *(path.relative_to(ROOT).as_posix() for path in ROOT.glob('configs/*/README.md')),
]


@pytest.mark.parametrize('page', PAGES)
def test_links_and_commands_lead_somewhere(page):
    text = (ROOT / page).read_text()
    links = [(ROOT / page).parent / link for link in re.findall(r'\]\(((?!http)[^)#]+)\)', text)]
    named = [
        ROOT / path
        for path in re.findall(r'(?<![\w./-])((?:tools|docker)/[\w./-]+\.(?:py|sh))\b', text)
        + re.findall(r'(?<![\w./])configs/[\w./-]+\.py\b', text)
    ]
    assert links or named
    own = ROOT / 'configs/ccnet/bicc.py'  # the reader's
    assert not [str(path) for path in links + named if not path.exists() and path != own]
