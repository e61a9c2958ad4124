"""Object ids drawn over a frame."""

import cv2
import numpy as np

from .masks import PALETTE


def draw_overlay(image: np.ndarray, ids: np.ndarray, opacity: float) -> np.ndarray:
    """Draw each object in the DAVIS colour of its id.

    A contour, opaque and two pixels wide, keeps small objects visible.

    Args:
        image (np.ndarray): uint8 ``(H, W, 3)``, BGR.
        ids (np.ndarray): uint8 ``(H, W)``; 0 is background.
        opacity (float): opacity inside the contours, 0 to 1.

    Returns:
        np.ndarray: uint8 ``(H, W, 3)``, BGR.

    Example:
        >>> ids = np.zeros((30, 44), np.uint8)
        >>> ids[10:20, 10:20] = 1
        >>> draw_overlay(np.zeros((30, 44, 3), np.uint8), ids, 0.5)[15, 15]
        array([ 0,  0, 64], dtype=uint8)
    """
    around = np.ones((3, 3), np.uint8)
    grown = cv2.dilate(ids, around)
    shares = np.where(ids > 0, np.float32(opacity), np.float32(0))
    shares[grown != cv2.erode(ids, around)] = 1
    colours = PALETTE[np.where(ids > 0, ids, grown)][..., ::-1]
    shares = shares[..., None]
    return np.rint(image * (1 - shares) + colours * shares).astype(np.uint8)
