"""What every metric promises, with the samples of ``metrics.py``."""

import json
import random
import re
from pathlib import Path

import pytest

from mmattn.segmentation import ForegroundIoUMetric

from .metrics import PROCESSES, metrics, plain

ROOT = Path(__file__).parents[2]
NAMES = ('face_parsing', 'foreground', 'video', 'translation', 'captions', 'answers', 'phrases')


@pytest.fixture(scope='module')
def cases(tmp_path_factory):
    return metrics(tmp_path_factory.mktemp('metrics') / 'clips')


@pytest.fixture
def case(request, cases):
    return cases[request.param]


each = pytest.mark.parametrize('case', NAMES, indirect=True)


def test_all_metrics_are_here(cases):
    texts = [path.read_text(encoding='utf-8') for path in (ROOT / 'mmattn').rglob('*.py')]
    names = {
        name
        for text in texts
        for name in re.findall(r'^@METRICS\.register_module\(\)\nclass (\w+)', text, re.MULTILINE)
    }
    assert names == {case.kind.__name__ for case in cases.values()}


def contents(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob('*') if path.is_file()}


@each
def test_figures_are_of_the_samples_since_the_last_evaluation(case, tmp_path):
    """A second evaluation by the same metric has the same figures and files, and a prefix is before their names."""
    expected = plain(case.evaluate())
    metric = case.kind(**case.options, prefix='a', output_dir=str(tmp_path))
    metric.dataset_meta = case.meta
    written = []
    for _ in range(2):
        metric.process({}, [sample if isinstance(sample, dict) else sample.to_dict() for sample in case.samples])
        assert plain(metric.evaluate(len(case.samples))) == {f'a/{name}': x for name, x in expected.items()}
        written.append(contents(tmp_path))
    assert written[0] == written[1]
    assert written[0]
    if case.kind is not ForegroundIoUMetric:  # mmseg's have no list
        assert {re.split('[/.]', name)[0] for name in expected} <= {*case.kind.metric_names}


# captions and phrases have no option that changes figures
@pytest.mark.parametrize('case', [name for name in NAMES if name not in ('captions', 'phrases')], indirect=True)
def test_options_change_figures(case):
    assert plain(case.evaluate(**case.unlike)) != plain(case.evaluate())


@each
def test_samples_in_any_order(case, tmp_path):
    """Of metrics that know their samples, repeated ones count once, and a missing one is an error."""
    shuffled = random.Random(0).sample(case.samples, len(case.samples))
    expected = plain(case.evaluate(output_dir=str(tmp_path / 'a')))
    more = case.unique * shuffled[:1]
    assert plain(case.evaluate([*shuffled, *more], output_dir=str(tmp_path / 'b'))) == pytest.approx(expected)
    if case.unique:
        assert contents(tmp_path / 'a') == contents(tmp_path / 'b')
        with pytest.raises(ValueError, match=case.kind.key):
            case.evaluate(case.samples[1:])


SCRIPT = """
import json, os
from pathlib import Path
import torch.distributed as dist
from tests.contracts.metrics import metrics, plain

rank = 0 if os.fork() else 1 if os.fork() else 2
dist.init_process_group('gloo', init_method='file://{folder}/store', rank=rank, world_size=3)
found = {{}}
for name, case in metrics(Path('{folder}/clips')).items():
    out = Path(f'{folder}/out/{{name}}')
    out.mkdir(parents=True, exist_ok=True)
    found[name] = plain(case.evaluate(case.part(rank), len(case.samples), output_dir=str(out)))
Path(f'{folder}/{{rank}}.json').write_text(json.dumps(found))
dist.destroy_process_group()
if rank != 2:
    assert os.wait()[1] == 0
"""


@pytest.mark.slow
def test_several_processes_have_the_figures_of_one(cases, run_python, tmp_path):
    """And its files. Samplers repeat samples; processes may have any of them, also none."""
    cases = metrics(tmp_path / 'clips')
    run_python(SCRIPT.format(folder=tmp_path), OMP_NUM_THREADS='1')
    found = [json.loads((tmp_path / f'{rank}.json').read_text()) for rank in range(PROCESSES)]
    for name, case in cases.items():
        one = tmp_path / 'one' / name
        expected = plain(case.evaluate(output_dir=str(one)))
        for figures in found:
            assert figures[name] == pytest.approx(expected, abs=1e-9), name
        assert contents(tmp_path / 'out' / name) == contents(one)
        # what would show a mistake
        parts = [plain(case.evaluate(part, len({id(x) for x in part}))) for part in map(case.part, range(2))]
        assert all(part != expected for part in parts)
