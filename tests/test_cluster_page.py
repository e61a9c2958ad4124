"""docs/cluster.md: its commands run as printed, with a Slurm that notes what it is given, and without downloads."""

import re
import sys
from pathlib import Path

import pytest
import torch
from mmengine.config import Config
from mmengine.registry import DATASETS, init_default_scope
from mmengine.runner.checkpoint import get_external_models

from .support import releases

ROOT = Path(__file__).parents[1]
INSTALL, *COMMANDS = re.findall(r'```bash\n(.*?)```', (ROOT / 'docs/cluster.md').read_text(encoding='utf-8'), re.S)
PROGRAMS = dict(
    pip='',
    unzip='',
    csDownload='shift; cd $1; shift; touch "$@"',
    srun='printf "%s\\n" "$*" >>srun.txt',
    sbatch='printf "%s\\n" "$*" >>sbatch.txt; bash; mkdir -p $WORK_DIR; touch $WORK_DIR/iter_80000.pth',
    scontrol='exit 1',
)
CONVERTER = """
from shutil import copy
def json2labelImg(source, target, ids):
    assert ids == 'trainIds'
    copy(source, target)
"""


@pytest.mark.e2e
def test_the_commands_of_the_page(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ('configs', 'mmattn', 'tests', 'tools'):
        Path(name).symlink_to(ROOT / name)
    for name, code in PROGRAMS.items():
        Path('bin', name).parent.mkdir(exist_ok=True)
        Path('bin', name).write_text(f'#!/usr/bin/env bash\n{code}\n')
        Path('bin', name).chmod(0o755)
    library = Path('library/cityscapesscripts/preparation/json2labelImg.py')
    library.parent.mkdir(parents=True)
    library.write_text(CONVERTER)
    releases.cityscapes(Path('data/cityscapes'))
    Path('data/cityscapes/gtFine/test').mkdir()
    for path in Path('data/cityscapes').rglob('*_labelTrainIds.png'):  # the release has polygons
        path.rename(path.with_name(path.name.replace('labelTrainIds.png', 'polygons.json')))
    weights = Path('torch/hub/checkpoints', Path(get_external_models()['resnet50_v1c']).name)
    weights.parent.mkdir(parents=True)
    torch.save({}, weights)
    (config,) = re.findall(r'^config=(.+)$', ''.join(COMMANDS), re.M)

    path = f'{tmp_path}/bin:{Path(sys.executable).parent}:/usr/bin:/bin'
    said = run(
        *('bash', '-euc', ''.join(COMMANDS)),
        PATH=path,
        PYTHONPATH=f'{ROOT}:{tmp_path}/library',
        TORCH_HOME=f'{tmp_path}/torch',
        WORK_DIR=f'work_dirs/{Path(config).stem}',
    )
    assert re.search(r'\| Bi-CC \| R50 \| Cityscapes \| mIoU 80\.17, mAcc 87\.43 \|', said)
    assert re.search(r'^3\.2 \| Bi-CC, R50 \| trained \| ok \|', said, re.M)
    assert [*Path('data/cityscapes').glob('*.zip')]

    (submitted,) = Path('sbatch.txt').read_text().splitlines()
    trained, tested = Path('srun.txt').read_text().splitlines()
    for line in (submitted, trained, tested):
        assert '--ntasks=4 ' in line
        assert '--gres=gpu:4' in line
    assert f'tools/train.py {config} --launcher slurm --amp --resume' in trained
    assert re.search(rf'tools/test\.py {config} work_dirs/\S+/iter_80000\.pth --launcher slurm', tested)

    monkeypatch.delenv('CITYSCAPES_ROOT', raising=False)
    cfg = Config.fromfile(config)
    init_default_scope('mmseg')
    for part, count in (('train', 4), ('val', 2)):
        data = DATASETS.build(cfg[f'{part}_dataloader'].dataset)
        assert len(data) == count
        assert all(Path(data.get_data_info(i)['seg_map_path']).is_file() for i in range(count))
