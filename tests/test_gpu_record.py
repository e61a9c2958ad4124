"""What pages and metafiles say of a GPU is in the record of its run."""

import json
import re
from collections import Counter
from pathlib import Path

import pytest
from mmengine.config import Config
from mmengine.fileio import load

from mmattn.utils import config_path

from .reproduction.test_published import is_printed, rows_of

RESULTS = Path(__file__).parents[1] / 'docs/results'
pytestmark = pytest.mark.slow


def test_the_table_of_the_gpu():
    """Each cell of docs/performance.md: ms and MiB of the forward pass, and of both passes."""
    record = json.loads((RESULTS / 'gpu_h200.json').read_text(encoding='utf-8'))
    page = (RESULTS.parent / 'performance.md').read_text(encoding='utf-8')
    names = {'P6, offset logits': 'P6, positions'}
    columns = {2: 'composition', 3: 'native', 4: 'triton'}
    compared = 0
    for line in page.partition('## GPUs')[2].partition('Training with AMP')[0].splitlines():
        cells = [cell.strip() for cell in line.strip('|').split('|')]
        if len(cells) != 5 or not re.fullmatch(r'P\d.*', cells[0]):
            continue
        for column, title in columns.items():
            numbers = re.findall(r'\d+(?:\.\d+)?', re.sub('[¹²³]', '', cells[column]))
            measured = {
                x['pass']: (x['ms'], x['mib'])
                for x in record['ops']
                if (x['workload'], x['dtype'], x.get('title')) == (names.get(cells[0], cells[0]), cells[1], title)
                and 'ms' in x
            }
            expected = [number for pass_ in ('forward', 'forward + backward') for number in measured.get(pass_, ())]
            assert len(numbers) == len(expected), (cells[:2], title)
            for x, y in zip(numbers, expected):
                assert abs(float(x) - y) <= 0.501 * 10 ** -len(x.partition('.')[2]), (cells[:2], title)
            compared += len(numbers)
    assert compared > 60


def test_what_a_training_needs():
    """Times and memory in metafiles are those of the GPU's file, of the config's samples."""
    record = json.loads((RESULTS / 'gpu_h200.json').read_text(encoding='utf-8'))['train']
    models = [model for path in sorted(config_path().glob('*/metafile.yml')) for model in load(path)['Models']]
    measured = [(model, entry) for model in models for entry in model.get('Measured', ())]
    assert len(measured) == 4
    hours = []
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
        hours.append(f'{cfg.train_cfg.max_iters * run["ms"] / 3.6e6:.1f}')
    page = (RESULTS.parent / 'questions.md').read_text(encoding='utf-8').partition('| ms per step |')[2]
    assert sorted(re.findall(r'^\|.*\| ([\d.]+) \|$', page, re.M)) == sorted(hours)


def test_the_text_on_values_of_the_gpu():
    """The number of unusual calls that were right by kernel, and every operator whose comparison did not end well."""
    record = json.loads((RESULTS / 'gpu_h200.json').read_text(encoding='utf-8'))
    page = (RESULTS.parent / 'performance.md').read_text(encoding='utf-8')
    text = ' '.join(page.partition('* **Values**')[2].partition('\n* ')[0].split())
    right = Counter(case['group'] for case in record['edge'] if 'group' in case and case.get('ok'))
    of_kernel = {
        kernel: sum(right[f'{kernel}:{x}'] for x in ('float32', 'float16', 'bfloat16'))
        for kernel in ('composition', 'native')
    }
    for count in (*of_kernel.values(), right['triton:float16']):
        assert f'in {count} unusual calls' in text
    assert f'in {right["triton:bfloat16"]} in bfloat16' in text
    for failed in record['compare']:
        if not failed.get('ok'):
            operator = failed.get('operator') or re.search(r'\w+', failed['task']).group()
            assert f'`{operator}`' in text, failed
    codes = {x['error'].removeprefix('exit code ') for x in record['compare'] if 'exit code' in x.get('error', '')}
    assert codes == {code.replace('−', '-') for code in re.findall(r'exit code ([−-]?\d+)', text)}


def test_the_table_of_training_on_a_gpu():
    """Every run with AMP of the record is on the page, in the column of its kernels: ms and MiB."""
    record = json.loads((RESULTS / 'gpu_h200.json').read_text(encoding='utf-8'))
    page = (RESULTS.parent / 'performance.md').read_text(encoding='utf-8').partition('Training with AMP')[2]
    printed = {}
    for heads, cells in rows_of(page.partition('On a CPU')[0]):
        stock, ours = cells[0].partition(',')[0].split(' → ')
        printed[stock, 'composition'] = cells[1]
        printed |= {(ours, head.partition(' ')[0]): cell for head, cell in zip(heads[2:], cells[2:])}
    printed['Bi-NL', 'formulas'] = page.partition('\n⁴ ')[2].partition(' with formulas')[0]
    columns = {'native': 'CUDA', 'triton': 'Triton'}
    measured = {
        (run['title'], columns.get(run['kernels'], run['kernels'])): (run['ms'], run['peak_mib'])
        for run in record['train']
        if run['amp']
    }
    assert measured.keys() == {key for key, cell in printed.items() if cell}
    for key, (ms, mib) in measured.items():
        first, second = re.sub('[*⁴⁵]', '', printed[key]).split(', ')
        assert is_printed(first, ms), key
        assert int(second) == mib, key
