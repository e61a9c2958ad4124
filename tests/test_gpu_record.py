"""What metafiles say of a GPU is in the record of its run."""

import json
from pathlib import Path

from mmengine.config import Config
from mmengine.fileio import load

from mmattn.utils import config_path

RECORD = Path(__file__).parents[1] / 'docs/results/gpu_h200.json'


def test_what_a_training_needs():
    """Times and memory in metafiles are those of the GPU's file, of the config's samples."""
    record = json.loads(RECORD.read_text(encoding='utf-8'))['train']
    models = [model for path in sorted(config_path().glob('*/metafile.yml')) for model in load(path)['Models']]
    measured = [(model, entry) for model in models for entry in model.get('Measured', ())]
    assert len(measured) == 4
    for model, entry in measured:
        [run] = [
            run
            for run in record
            if (run['title'], run['kernels'], run['amp'])
            == (entry['Title'], entry['Kernels'], '--amp' in entry['Precision'])
        ]
        assert (entry['ms'], entry['Peak (MiB)'], entry['Samples']) == (run['ms'], run['peak_mib'], run['batch'])
        cfg = Config.fromfile(config_path(model['Config'].removeprefix('configs/')))
        assert (*cfg.model.data_preprocessor.size, cfg.train_dataloader.batch_size) == (*run['size'], run['batch'])
        assert model['Metadata']['Iterations'] == cfg.train_cfg.max_iters
