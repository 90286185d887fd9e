"""Every chart that a test of this folder draws must say itself in words."""

from tests.ui.views.conftest import charts_in_words  # noqa: F401
