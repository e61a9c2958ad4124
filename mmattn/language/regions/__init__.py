"""Region features of images: the store, its writer, and what shows them.

Import the names from :mod:`mmattn.language`. Imports ``language``'s ``layers`` and ``text``, ``engine``,
``visualization`` and ``utils``, and no task. Start with ``image_regions.py``, what the regions of an image are, and
``region_store.py``, which all data sets read; ``region_writer.py`` fills a store, with what
``tools/dataset_converters`` extract or convert.
"""
