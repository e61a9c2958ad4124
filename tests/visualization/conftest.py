"""What tests of several files look at."""

from pathlib import Path

import pytest


@pytest.fixture
def data_root(tiny_data, monkeypatch):
    for name, value in tiny_data.items():
        monkeypatch.setenv(name, value)
    return Path(tiny_data['BUILDINGS_ROOT'])
