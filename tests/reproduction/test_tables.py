"""The papers' tables, as the metafiles have them."""

import re

from mmattn.utils import config_path
from reproduction.tables import read_tables

from .test_plan import DATA

TABLES = read_tables()


def test_every_table_has_its_rows_and_baselines():
    assert set(TABLES) == set(DATA)
    for table, rows in TABLES.items():
        places = [(row.setting, row.order) for row in rows]
        assert len(set(places)) == len(places), table
        # A baseline may have one itself; the last has none.
        baselines = {(row.name, row.setting): row.baseline for row in rows}
        for row in rows:
            name, passed = row.name, []
            while name is not None:
                assert name not in passed, table
                passed.append(name)
                name = baselines[name, row.setting]
        assert all(config_path(name).is_file() for row in rows for name in row.configs)


# The last are tested, not trained.
IN_NO_TABLE = {
    'unet_ba/unet-ba_r18-d32_1xb12-100e_helen-448x448.py',
    'eta/eta-ensemble_1xb15-scst-15e_coco-captions.py',
    'eta/eta-ensemble-3_1xb15-scst-15e_coco-captions.py',
    'eta/eta-visual-semantic-ensemble_1xb15-scst-15e_coco-captions.py',
}


def test_tables_are_those_of_the_readmes():
    """Each config that a README has beside figures of a paper is a row, or a stage of one; the figures are the same."""
    known = {name for rows in TABLES.values() for row in rows for name in row.configs}
    for folder in (path.parent.name for path in config_path().glob('*/metafile.yml')):
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
