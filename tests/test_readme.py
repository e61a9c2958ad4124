"""The configs of the README and of docs are run or built; links and commands of all pages lead somewhere."""

import json
import re
import subprocess
from importlib.util import find_spec
from pathlib import Path
from xml.etree import ElementTree

import pytest
from mmengine.config import Config
from mmengine.registry import DATASETS, METRICS, MODELS, init_default_scope

import mmattn.language.layers
import mmattn.layers
import mmattn.ops
from mmattn import registry
from mmattn.engine import load_config
from mmattn.language.captioning.annotations import read_annotations
from mmattn.layers.positions import POSITIONS, Positions
from mmattn.layers.window_position import PADDINGS, SMOOTHINGS

from . import tiny_data
from .forked_tools import run_command, tool
from .requirements import requires
from .support import releases

OPERATORS = requires('mmcv operators')
ROOT = Path(__file__).parents[1]
README = (ROOT / 'README.md').read_text()
SNIPPETS = [
    snippet
    for path in [ROOT / 'README.md', *ROOT.glob('docs/*.md')]
    for snippet in re.findall(r'```python\n(.*?)```', path.read_text(), re.DOTALL)
]


def test_the_config_for_own_data_trains(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (snippet,) = (text for text in SNIPPETS if 'data/mine' in text)
    (tmp_path / 'my_config.py').write_text(snippet)
    tiny_data.folders(tmp_path / 'data/mine', '.jpg', 2)
    channels = ('backbone.base_', 8), ('decode_head.in_', 64), ('decode_head.', 16), ('auxiliary_head.in_', 32)
    small = [f'model.{part}channels={number}' for part, number in (*channels, ('auxiliary_head.', 16))]
    small += ['train_cfg.max_iters=1', 'train_cfg.val_interval=1', 'train_dataloader.batch_size=2']
    done = run_command(tool('train.py', 'my_config.py', '--cfg-options', *small))
    assert done.returncode == 0, done.stderr
    assert re.search(r'\|\s+road\s+\|', done.stdout + done.stderr)  # the table of classes
    assert list((tmp_path / 'work_dirs/my_config').glob('*/vis_data/scalars.json'))


@requires('mmcv operators')
def test_the_configs_for_own_boxes_read_the_same_from_coco_and_pascal_voc(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    classes = 'RBC', 'WBC', 'Platelets'
    root = Path('data/cells')
    releases.voc(root, classes)
    (root / 'images').symlink_to('JPEGImages')
    for part in ('train', 'val'):
        names = (root / f'ImageSets/Main/{part}.txt').read_text().split()
        files = [ElementTree.parse(root / f'Annotations/{name}.xml') for name in names]
        sizes = [{side: int(file.findtext(f'size/{side}')) for side in ('width', 'height')} for file in files]
        images = [dict(size, id=i, file_name=f'{name}.jpg') for i, (name, size) in enumerate(zip(names, sizes))]
        boxes = []
        for i, file in enumerate(files):
            for box in file.iterfind('object'):
                left, top, right, bottom = (int(corner.text) for corner in box.find('bndbox'))
                where = dict(bbox=[left - 1, top - 1, right - left, bottom - top], area=(right - left) * (bottom - top))
                category = classes.index(box.findtext('name'))
                boxes.append(dict(where, id=len(boxes), image_id=i, iscrowd=0, category_id=category))
        categories = [dict(id=i, name=name) for i, name in enumerate(classes)]
        (root / f'{part}.json').write_text(json.dumps(dict(images=images, annotations=boxes, categories=categories)))
    init_default_scope('mmdet')
    read = []
    for snippet in (text for text in SNIPPETS if 'data/cells' in text):
        Path('my_detector.py').write_text(snippet)
        cfg = load_config('my_detector.py')
        assert MODELS.build(cfg.model).roi_head.bbox_head.num_classes == len(classes)
        METRICS.build(cfg.val_evaluator).dataset_meta = cfg.val_dataloader.dataset.metainfo
        for loader in (cfg.train_dataloader, cfg.val_dataloader):
            dataset = DATASETS.build(loader.dataset)
            assert dataset[0]['data_samples'].gt_instances.bboxes.shape[1] == 4
            boxes = {}
            for item in map(dataset.get_data_info, range(len(dataset))):
                objects = [x for x in item['instances'] if x['bbox'][0] < x['bbox'][2]]
                boxes[Path(item['img_path']).name] = sorted((x['bbox_label'], *x['bbox']) for x in objects)
            read.append(boxes)
    assert read[:2] == read[2:]  # training and validation
    assert len(read[0]) + len(read[1]) == 6


@pytest.mark.parametrize(
    ('stock', 'part', 'layer', 'count'),
    [
        ('mmseg/ccnet/ccnet_r50', 'decode_head', 'BilateralCrissCrossAttention', 1),
        ('mmseg/upernet/upernet_r50', 'decode_head', 'BAConv2d', 5),  # pyramid, three levels, fusion
        pytest.param('mmdet/faster_rcnn/faster-rcnn_r50', 'backbone', 'TransformerAttention2d', 9, marks=OPERATORS),
    ],
)
def test_a_stock_config_with_our_layers_builds(tmp_path, stock, part, layer, count):
    package, folder, name = stock.split('/')
    snippets = [text for text in SNIPPETS if name in text]
    assert snippets
    configs = Path(find_spec(package).origin).parent / '.mim/configs'
    for snippet in snippets:
        (tmp_path / 'user.py').write_text(snippet.replace(f'../{folder}', str(configs / folder)))
        cfg = Config.fromfile(tmp_path / 'user.py')
        init_default_scope(package)
        built = MODELS.build(cfg.model[part])
        assert sum(isinstance(module, getattr(mmattn.layers, layer)) for module in built.modules()) == count


def test_captions_of_your_own_are_read(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (code,) = (text for text in SNIPPETS if 'captions.csv' in text)
    Path('data/flickr8k').mkdir(parents=True)
    Path('captions.csv').write_text('a b.jpg,train,"Ein Hund, groß."\na b.jpg,train,Ein Hund.\nc.d.png,val,Meer\n')
    exec(code, {})
    assert read_annotations('data/flickr8k/dataset_flickr8k.json') == [
        ('a b', 'train', ['Ein Hund, groß.', 'Ein Hund.'], [['ein', 'hund', 'groß'], ['ein', 'hund']]),
        ('c.d', 'val', ['Meer'], [['meer']]),
    ]


PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for pattern in ('*.md', 'docker/*.md', 'docs/**/*.md', 'mmattn/ops/**/*.md', 'configs/*/*.md')
    for path in ROOT.glob(pattern)
)
CODE = re.compile(r'^```(\w+)\n(.*?)^```', re.DOTALL | re.MULTILINE)


def prose(page):
    """The text of a page without its blocks of code."""
    return CODE.sub('', (ROOT / page).read_text())


def links(page):
    """Paths and anchors that a page links to in this repository; an anchor alone is of the page itself."""
    for path, anchor in re.findall(r'\]\((?!http)([^)#\s]*)(?:#([^)\s]+))?\)', prose(page)):
        yield ((ROOT / page).parent / path if path else ROOT / page).resolve(), anchor


def anchors(path):
    """What GitHub makes of the headings of a page."""
    headings = re.findall(r'^#+ (.+)$', CODE.sub('', path.read_text()), re.MULTILINE)
    return {re.sub(r'[^\w\- ]', '', heading).strip().lower().replace(' ', '-') for heading in headings}


@pytest.mark.parametrize('page', PAGES)
def test_links_and_commands_lead_somewhere(page):
    text = (ROOT / page).read_text()
    paths = re.findall(r'(?<![\w./-])((?:tools|docker)/[\w./-]+\.(?:py|sh))\b', text)
    named = [ROOT / path for path in paths + re.findall(r'(?<![\w./])configs/[\w./-]+\.py\b', text)]
    linked = list(links(page))
    assert linked or named
    own = ROOT / 'configs/ccnet/bicc.py'  # the reader's
    assert not [str(path) for path, _ in linked if not path.exists()]
    assert not [str(path) for path in named if not path.exists() and path != own]
    assert not [f'{path}#{anchor}' for path, anchor in linked if anchor and anchor not in anchors(path)]


def test_the_files_in_the_picture_of_a_call_exist():
    picture = (ROOT / 'docs/how_a_call_flows.svg').read_text(encoding='utf-8')
    paths = re.findall(r'>((?:configs|mmattn)/[\w./-]+)', picture)
    assert len(paths) > 5
    assert not [path for path in paths if not (ROOT / path).exists()]


@pytest.mark.parametrize('page', PAGES)
def test_blocks_of_code_are_of_their_language(page):
    for language, code in CODE.findall((ROOT / page).read_text()):
        if language == 'python':
            compile(code, page, 'exec')
        elif language == 'bash':
            done = subprocess.run(['bash', '-n'], input=code, capture_output=True, text=True)
            assert (done.returncode, done.stderr) == (0, '')
        else:
            assert language in ('bibtex', 'diff', 'text')


COMMANDS = {}  # by tool, the options that pages print, and a page of each
for page in PAGES:
    for language, code in CODE.findall((ROOT / page).read_text()):
        lines = code.replace('\\\n', ' ') if language == 'bash' else ''
        for name, arguments in re.findall(r'^[^#\n]*\bpython tools/(\S+\.py)([^#\n]*)', lines, re.MULTILINE):
            options = re.findall(r'(?<!\S)--[a-z0-9-]+', arguments)
            COMMANDS.setdefault(name, {}).update(dict.fromkeys(options, page))


@pytest.mark.parametrize('name', sorted(name for name in COMMANDS if COMMANDS[name]))
def test_options_of_commands_are_those_of_the_tools(name):
    done = run_command(tool(name, '--help'))
    assert done.returncode == 0, done.stderr
    known = set(re.findall(r'(?<![\w-])--[a-z0-9-]+', done.stdout.partition('\n\n')[0]))  # the usage
    assert not {option: page for option, page in COMMANDS[name].items() if option not in known}


def test_pages_print_commands():
    assert len(COMMANDS) > 20


def test_every_page_is_reached_from_the_readme():
    index = {path for path, _ in links('README.md')}
    assert not [str(path) for path in ROOT.glob('docs/*.md') if path not in index]
    reached, new = set(), {ROOT / 'README.md'}
    while new:
        reached |= new
        linked = {path for page in new for path, _ in links(page.relative_to(ROOT))}
        new = {path for path in linked if path.suffix == '.md' and path.exists()} - reached
    assert {ROOT / page for page in PAGES} == reached


def test_every_folder_of_data_is_on_the_page_of_data_sets():
    """With its environment variable, as in the configs."""
    page = (ROOT / 'docs/datasets.md').read_text(encoding='utf-8')
    configs = ''.join(path.read_text(encoding='utf-8') for path in (ROOT / 'configs').rglob('*.py'))
    folders = {(variable, folder) for variable, folder in re.findall(r"'\{\{\$(\w+):data/([^}]*)\}\}", configs)}
    assert {(variable, folder) for folder, variable in re.findall(r'`([^`]+)`, `(\w+_ROOT)`', page)} == folders


def test_the_first_lines_of_python_run():
    (lines,) = (code for language, code in CODE.findall(README) if language == 'python' and 'import torch' in code)
    exec(lines, {})


def test_components_lists_what_is_registered_and_what_is_public():
    registries = [value for value in vars(registry).values() if isinstance(value, registry.FolderRegistry)]
    registries[0].import_from_location()
    registered = {
        f'mmattn.{name}'
        for child in registries
        for name, component in child.module_dict.items()
        if component.__module__.startswith('mmattn.')  # the components of tools/reproduce.py are its own
    }
    text = (ROOT / 'docs/components.md').read_text()
    functions = {name for name in registered if name.split('.')[1].islower()}
    listed = set(re.findall(r'\bmmattn\.[A-Z]\w+', text))
    new, gone = registered - functions - listed, listed - registered
    assert not new | gone, f'docs/components.md: add {sorted(new)}, remove {sorted(gone)}'
    assert not [name for name in functions if f'`{name}`' not in text]
    assert not [name for name in mmattn.ops.__all__ if not re.search(rf'\b{name}`', text)]


def test_components_lists_the_options_of_positions_with_their_values_and_defaults():
    table = (ROOT / 'docs/components.md').read_text(encoding='utf-8').partition('| argument |')[2].partition('\n\n')[0]
    rows = [[cell.strip() for cell in line[1:-1].split(' |')] for line in table.splitlines()[2:]]
    listed = {name.strip('`'): cells for name, _, *cells in rows}
    assert listed.keys() == {'position', 'zero_init', *Positions.position_options}
    for name, choices in (('position', POSITIONS), ('padding', PADDINGS), ('smoothing', SMOOTHINGS)):
        assert sorted(re.findall("'(\\w+)'", listed[name][0])) == sorted(choices)
    layers = mmattn.layers.BilateralNonLocal2d, mmattn.language.layers.BilateralMultiheadAttention
    for column, layer in enumerate(layers, 1):
        for name, default in layer.position_options.items():
            assert listed[name][column].strip('`') == repr(default)
