"""Sums are in one order: layers are compared to the last digits."""

import pytest

from ...ops import literal

one_thread = pytest.fixture(autouse=True, scope='module')(literal.one_thread)
