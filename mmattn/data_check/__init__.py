"""Check of a user's data before the first iteration: images, masks, boxes, classes and metrics.

``segmentation`` and ``detection`` export its hooks, :class:`~mmattn.segmentation.SegDataCheckHook` and
:class:`~mmattn.detection.DetDataCheckHook`. ``language`` brings checks of its own, from the base class of ``hook.py``.
It imports ``utils``, ``registry.py`` and ``_compat.py``, and no task. Start with ``hook.py``, which runs before
training; ``data_sets.py`` walks the data sets of a config; the other files each check one kind of data.
"""
