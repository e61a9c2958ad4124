"""What the converters share. A script of the folder above imports it as ``common``.

It imports ``mmattn``, and no converter. Start with ``conversion.py``, which makes a function a converter, then
``segmentation.py`` or ``vqa.py``, which write the layout that the data sets of a task read.
"""
