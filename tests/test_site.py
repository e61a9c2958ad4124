"""The documentation as a site: every page, with an API reference from the docstrings."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from .requirements import requires

ROOT = Path(__file__).parents[1]


@pytest.mark.e2e
@requires('sphinx')
def test_the_site_builds_without_a_warning(tmp_path):
    """Links, anchors, pictures and docstrings; every page is in the table of contents."""
    command = [sys.executable, '-m', 'sphinx', '-q', '-W', '--keep-going', '-c', 'docs', '-d', tmp_path / 'cache']
    done = subprocess.run([*command, '.', tmp_path / 'site'], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    reference = (tmp_path / 'site/docs/api.html').read_text(encoding='utf-8')
    for name in ('mmattn.ops.grid_attention', 'mmattn.segmentation.BiCCHead', 'mmattn.video.SST'):
        assert re.search(rf'id="[^"]*{name.rpartition(".")[2]}"', reference), name
