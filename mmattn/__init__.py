"""Position-aware attention for MMSegmentation and MMDetection.

Importing this package loads neither torch nor any OpenMMLab package: components register themselves when a config first
names one (``type='mmattn.BiCCHead'``).
"""

__version__ = '0.1.0'
