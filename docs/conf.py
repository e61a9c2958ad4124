"""Builds the pages and the API reference as a site: python -m sphinx -c docs -W . work_dirs/site"""

from importlib import import_module

import mmattn

# autodoc documents what is in a module, and these packages import their public names only when they are used.
LAZY = (
    'layers',
    'segmentation',
    'segmentation.face_parsing',
    'video',
    'language.layers',
    'language.translation',
    'language.captioning',
    'language.vqa',
    'language.grounding',
    'engine',
    'visualization',
    'deployment',
)
for package in LAZY:
    module = import_module(f'mmattn.{package}')
    public = {name: getattr(module, name) for name in module.__all__}
    ours = {name: x for name, x in public.items() if getattr(x, '__module__', '').startswith('mmattn.')}
    vars(module).update(ours)

project = 'mmattn'
copyright = 'The mmattn contributors'
release = mmattn.__version__

extensions = ['myst_parser', 'sphinx.ext.autodoc', 'sphinx.ext.napoleon']
root_doc = 'docs/index'
include_patterns = [  # the pages lie where they are read in the repository
    'README.md',
    'CHANGELOG.md',
    'CONTRIBUTING.md',
    'SECURITY.md',
    'docs/**',
    'configs/*/README.md',
    'docker/README.md',
    'mmattn/ops/README.md',
    'mmattn/ops/csrc/README.md',
]
source_suffix = {'.md': 'markdown', '.rst': 'restructuredtext'}
myst_heading_anchors = 4
html_theme = 'furo'
html_title = f'mmattn {release}'
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True  # once, although a NamedTuple has its fields as attributes
autodoc_typehints = 'none'  # the docstrings have the types, and shapes
autodoc_member_order = 'bysource'
autodoc_default_options = {'exclude-members': 'layer'}  # an attribute that is a class of its own


def setup(app):
    """Print |x| in docstrings as it is. In reStructuredText, it would be replaced by something named x."""

    def escape(_app, _what, _name, _x, _options, lines):
        lines[:] = [line if '>>>' in line else line.replace('|', '\\|') for line in lines]

    app.connect('autodoc-process-docstring', escape)
