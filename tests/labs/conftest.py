"""Every chart that a test in this folder draws must have a text that describes it."""

from tests.ui.views.conftest import check_chart_texts  # noqa: F401
