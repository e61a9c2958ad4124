"""Ids over a frame in colour."""

import cv2
import numpy as np

from .masks import PALETTE


def draw_overlay(image: np.ndarray, ids: np.ndarray, opacity: float) -> np.ndarray:
    """Draw each object in DAVIS's colour of its id, with an opaque contour, two pixels wide, which shows small ones.

    Args:
        image (np.ndarray): uint8 ``(H, W, 3)``, BGR.
        ids (np.ndarray): uint8 ``(H, W)``; 0 is background.
        opacity (float): of the colours within the contours, 0 to 1.

    Returns:
        np.ndarray: uint8 ``(H, W, 3)``, BGR.
    """
    around = np.ones((3, 3), np.uint8)
    grown = cv2.dilate(ids, around)
    shares = np.where(ids > 0, np.float32(opacity), np.float32(0))
    shares[grown != cv2.erode(ids, around)] = 1
    colours = PALETTE[np.where(ids > 0, ids, grown)][..., ::-1]
    shares = shares[..., None]
    return np.rint(image * (1 - shares) + colours * shares).astype(np.uint8)
