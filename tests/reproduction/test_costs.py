"""What configs cost: the counts of the metafiles are those of the networks."""

from collections import defaultdict

import pytest
from mmengine.config import Config
from mmengine.fileio import load

from analysis_tools.get_flops import count
from mmattn.utils import config_path

METAFILES = sorted(config_path().glob('*/metafile.yml'))


def test_all_networks_are_counted():
    """All but label propagation, which is not trained."""
    missing = [model['Name'] for path in METAFILES for model in load(path)['Models'] if 'Counts' not in model]
    assert missing == ['label-propagation_mobilenet-v2-d8_davis-240p']


def of_each_kind():
    """The smallest network of each folder that needs no operator of mmcv, and one whose constructor reads tensors."""
    kinds = defaultdict(list)
    for path in METAFILES:
        for model in load(path)['Models']:
            name = model['Name']
            if 'Counts' in model and not name.startswith(('faster-rcnn', 'cc_')) and 'dcn' not in name:
                kinds[path.parent.name].append(model)
    smallest = [min(models, key=lambda model: model['Counts']['MACs (G)']) for models in kinds.values()]
    return [*smallest, *(model for model in kinds['bi_cc'] if 'mit-b0' in model['Name'])]


@pytest.mark.parametrize('model', of_each_kind(), ids=lambda model: model['Name'])
def test_counts_are_those_of_the_networks(model):
    recorded = model['Counts']['Input']
    size = recorded if isinstance(recorded, list) else [int(word) for word in recorded.split() if word.isdigit()]
    if 'image' in str(recorded):
        size = [1, 14]
    cfg = Config.fromfile(config_path(model['Config'].removeprefix('configs/')))
    parameters, macs = count(cfg, (3, *size[-2:]), **(dict(frames=size[0]) if len(size) == 3 else {}))
    assert model['Counts']['Parameters (M)'] == pytest.approx(parameters / 1e6, abs=0.006)
    assert model['Counts']['MACs (G)'] == pytest.approx(macs / 1e9, rel=2e-3)
