"""Every shipped config, resolved: a digest of its settings, and its name."""

import os

from mmengine.config import Config

from mmattn.utils import config_path

from .settings import digest, settings


def test_all_configs(same_lines, monkeypatch):
    """The docstring of ``settings.py`` says how to see what changed."""
    for name in [key for key in os.environ if key.endswith('_ROOT')]:  # shipped folders of data
        monkeypatch.delenv(name)
    configs = [(path, Config.fromfile(path).to_dict()) for path in sorted(config_path().glob('[!_]*/*.py'))]
    same_lines(
        'configs.txt', [f'{digest(settings(config))} {path.parent.name}/{path.name}' for path, config in configs]
    )
