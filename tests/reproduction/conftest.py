"""What the tests of reproduction share: data sets of small images."""

from pathlib import Path

import pytest

from reproduction.protocol import data_sets


@pytest.fixture
def data(tiny_data, monkeypatch):
    """Folders of the data sets by name; the environment names them, too."""
    for name, value in tiny_data.items():
        monkeypatch.setenv(name, value)
    return {name: Path(tiny_data[variable]) for name, variable in data_sets().items()}
