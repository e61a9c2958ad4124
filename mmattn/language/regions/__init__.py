"""Region features of images: the store, its writer, and their extraction from detectors and backbones."""
