"""Region features of images: the store, its writer, and their extraction from detectors and backbones.

Import the names from :mod:`mmattn.language`. Imports ``language``'s ``layers`` and ``text``, ``engine``,
``visualization`` and ``utils``, and no task. Start with ``region_store.py``, which all data sets read;
``extractors.py`` and ``region_writer.py`` fill a store, ``region_archives.py`` and ``conversion.py`` convert published
features.
"""
