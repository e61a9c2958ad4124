"""What the converters share. A script of the folder above imports it as ``common``.

It imports ``mmattn``, and no converter. Start with ``segmentation.py`` or ``vqa.py``: each writes the layout that the
data sets of its task read.
"""
