"""Packages and names that are imported at their first use, and configs that do not exist."""

import sys

import pytest

from mmattn.utils import config_path
from mmattn.utils.lazy import lazy_names
from mmattn.utils.optional import import_optional, requires

MODULES = {'empty': 'Nothing Other', 'mmattn.utils.paths': 'config_path'}


@pytest.fixture
def package(tmp_path, monkeypatch):
    """``package(text)``: a package with a module ``empty`` of this text; its ``__getattr__`` and its ``__all__``."""
    monkeypatch.syspath_prepend(tmp_path)

    def package(text):
        (tmp_path / 'tried').mkdir()
        (tmp_path / 'tried/__init__.py').touch()
        (tmp_path / 'tried/empty.py').write_text(text)
        return lazy_names('tried', MODULES)

    yield package
    for name in ('tried', 'tried.empty', 'broken_one'):
        sys.modules.pop(name, None)


def test_names_are_loaded_from_their_modules(package):
    load, names = package('Nothing, Other = 3, 4')
    assert 'tried.empty' not in sys.modules
    assert names == ['Nothing', 'Other', 'config_path']
    assert (load('Nothing'), load('Other'), load('config_path')) == (3, 4, config_path)
    with pytest.raises(AttributeError, match=r"'tried'.*'Others'"):
        load('Others')


@pytest.mark.parametrize(
    ('text', 'hidden', 'error', 'said'),
    [
        ('import mmseg.models', 'mmseg', ImportError, r'tried\.Nothing.*pip install onedl-mmsegmentation.*mmsegment'),
        ('import nowhere.models', '', ModuleNotFoundError, "^No module named 'nowhere'"),
        ('import mmengine.nowhere', '', ModuleNotFoundError, r"^No module named 'mmengine\.nowhere'"),
    ],
)
def test_a_package_that_is_missing_is_named_with_its_installation(package, monkeypatch, text, hidden, error, said):
    """Not one of others, nor one that is there, but broken."""
    load, _ = package(text)
    if hidden:
        monkeypatch.delitem(sys.modules, f'{hidden}.models', raising=False)
        monkeypatch.setitem(sys.modules, hidden, None)
    with pytest.raises(error, match=said) as caught:
        load('Nothing')
    assert type(caught.value) is error


def test_both_families_of_packages_are_named():
    said = requires('mmattn.X', ['mmcv', 'mmdet'])
    assert "'mmattn.X' requires mmcv and mmdet," in said
    assert 'pip install onedl-mmcv onedl-mmdetection ' in said
    assert 'pip install mmcv mmdet ' in said


def test_an_optional_package(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / 'broken_one.py').write_text('import nowhere')
    assert import_optional('json.decoder') is sys.modules['json.decoder']
    with pytest.raises(ImportError, match=r'^nowhere .*pip install .mmattn\[language\]'):
        import_optional('nowhere.models')
    with pytest.raises(ModuleNotFoundError, match=r"^No module named 'nowhere'"):
        import_optional('broken_one')


def test_a_config_that_does_not_exist_is_named_with_those_beside_it():
    for name, folder, other in (('bi_cc/x.py', 'bi_cc', 'metafile.yml'), ('x/y.py', 'configs', 'bi_cc, ')):
        with pytest.raises(FileNotFoundError, match=rf"'{name}' .*/configs; .*{folder} contains .*{other}"):
            config_path(name)
    assert config_path('bi_cc').is_dir()
    assert (config_path() / '_base_').is_dir()
