"""Installs mmattn with its configs and tools, laid out as ``mmattn/.mim`` for ``mim`` and mmengine's hub."""
import re
import shutil
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent


class BuildWithConfigs(build_py):
    """Adds ``.mim``: copied into a wheel, linked into the source tree for an editable install."""

    def run(self) -> None:
        super().run()
        mim = (ROOT if self.editable_mode else Path(self.build_lib)) / 'mmattn' / '.mim'
        shutil.rmtree(mim, ignore_errors=True)
        mim.mkdir(parents=True)
        for name in ('configs', 'tools'):
            if self.editable_mode:
                (mim / name).symlink_to(Path('..', '..', name), target_is_directory=True)
            else:
                shutil.copytree(ROOT / name, mim / name, ignore=shutil.ignore_patterns('__pycache__'))
        metafiles = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob('configs/*/metafile.yml'))
        (mim / 'model-index.yml').write_text(f'Import: {metafiles}\n')


setup(
    name='mmattn',
    version=re.search(r"__version__ = '(.+)'", (ROOT / 'mmattn' / '__init__.py').read_text()).group(1),
    description='Position-aware attention for MMSegmentation and MMDetection',
    long_description=(ROOT / 'README.md').read_text(),
    long_description_content_type='text/markdown',
    license='Apache-2.0',
    license_files=['LICENSE'],
    packages=find_packages(include=['mmattn', 'mmattn.*']),
    python_requires='>=3.10',
    # No OpenMMLab distribution here: the originals and their maintained continuations share import names, and pip
    # cannot tell that either will do. The extras name one family each.
    install_requires=['torch>=2.4', 'numpy'],
    extras_require={
        'onedl': ['onedl-mmengine>=0.10.8', 'onedl-mmcv>=2.3', 'onedl-mmsegmentation>=1.4', 'onedl-mmdetection>=3.5'],
        'openmmlab': ['mmengine>=0.10.7', 'mmcv>=2.0.0', 'mmsegmentation>=1.2.2', 'mmdet>=3.3.0', 'setuptools<81'],
    },
    cmdclass={'build_py': BuildWithConfigs},
    zip_safe=False)
