"""The papers' tables, as the metafiles have them."""

import re

import pytest

from mmattn.utils import config_path
from reproduction.tables import read_tables

from .test_plan import DATA

pytestmark = pytest.mark.slow

TABLES = read_tables()


def test_every_table_has_its_rows_and_baselines():
    assert set(TABLES) == {table for table, _ in DATA}
    for table, rows in TABLES.items():
        places = [(row.setting, row.order) for row in rows]
        assert len(set(places)) == len(places), table
        # A baseline may have one itself; the last has none.
        baselines = {(row.name, row.setting): row.compared for row in rows}
        for row in rows:
            place, passed = (row.name, row.setting), []
            while place[0] is not None:
                assert place not in passed, table
                passed.append(place)
                place = baselines[place]
        assert all(config_path(name).is_file() for row in rows for name in row.configs)


IN_NO_TABLE = {
    'unet_ba/unet-ba_r18-d32_1xb12-100e_helen-448x448.py',
    'eta/eta-ensemble-3_1xb15-scst-15e_coco-captions.py',  # of a test server
}


def test_tables_are_those_of_the_readmes():
    """Each config that a README has beside figures of a paper is a row, or a stage of one; the figures are the same."""
    known = {name for rows in TABLES.values() for row in rows for name in row.configs}
    for folder in (path.parent.name for path in config_path().glob('*/metafile.yml')):
        if folder == 'label_propagation':  # of no paper
            continue
        section = re.search(r'## Paper and here\n(.*?)\n## ', config_path(f'{folder}/README.md').read_text(), re.S)[1]
        linked = {
            f'{folder}/{name}'
            for line in section.splitlines()
            if line.startswith('|')
            for name in re.findall(r'\]\(([^)]+\.py)\)', line)
        }
        assert len(linked) >= 3
        assert linked - known <= IN_NO_TABLE
        for row in (row for rows in TABLES.values() for row in rows if row.configs[-1].startswith(f'{folder}/')):
            # Many rows on sentences are options of a config, and the README has the compared figure alone.
            compared = row.metrics.get('CIDEr-D') or row.metrics.get('accuracy')
            lines = ' '.join(
                line
                for line in section.splitlines()
                if (line.startswith('|') if compared else row.configs[-1].split('/')[1] in line)
            )
            printed = set(map(float, re.findall(r'(?<=[ |])\d+\.\d+(?=[ |])', lines)))
            figures = {compared} if compared else set(row.metrics.values())
            assert figures <= printed, row


ORDER = ('1111', '1011', '1010', '1001', '1000', '0011', '0010', '0001', 'w/o')
# Δ as printed, in the paper's order.
DELTAS = {
    ('2', 'mAP'): (4.6, 2.2, 2.1, 2.2, 2.1, 2.2, 2.0, 2.1, 1.3),
    ('2', 'mIoU'): (5.9, 1.1, 1.0, 1.1, 1.0, 0.9, 0.7, 1.0, 0.9),
    ('terms-nmt-2', 'BLEU'): (7.1, 0.3, 0.3, 0.3, 0.3, 0.1, 0.1, 0.2, -0.1),
    ('3', 'mAP'): (-0.7, -0.8, -1.0, -1.0),
    ('3', 'mIoU'): (-1.3, -1.3, -1.7, -2.5),
    ('terms-nmt-3', 'BLEU'): (0.2, 0.2, 0.1, 0.1),
}


@pytest.mark.parametrize(('table', 'metric'), DELTAS)
def test_differences_to_baselines_are_those_of_the_empirical_study(table, metric):
    """Its Tables 2 and 3 print differences between certain rows; the rows' baselines give them in the same order."""
    rows = {(row.name, row.setting): row for row in TABLES[table] if metric in row.metrics}
    pairs = [row for row in rows.values() if row.baseline and ('deformable' in row.setting or 'dynamic' in row.name)]
    pairs.sort(key=lambda row: row.order if 'dynamic' in row.name else ORDER.index(row.name.partition(':')[0]))
    found = [row.metrics[metric] - rows[row.compared].metrics[metric] for row in pairs]
    assert found == pytest.approx(DELTAS[table, metric], abs=1e-9)
