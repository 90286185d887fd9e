"""Every chart that a test in this folder draws must have a text that describes it."""

import html

import pytest

from lib.ui.views.chart import Chart


@pytest.fixture(autouse=True)
def check_chart_texts(monkeypatch):
    """Fail the test if the text of one of its charts omits what is drawn, or contains “nan”."""
    made, begin = [], Chart.__init__

    def remembered(self, *given, **named):
        begin(self, *given, **named)
        made.append(self)

    monkeypatch.setattr(Chart, "__init__", remembered)
    yield
    monkeypatch.undo()
    for chart in made:
        text = chart.text
        if "layer" in chart.spec:
            assert text.axes, chart.title
            assert text.content, (
                f"{chart.title}: expected marks with tooltips, got none; give them what is worth telling"
            )
        shown = html.unescape(text.as_html(chart.title))
        assert "nan" not in [cell.lower() for values in text.values for row in values.rows for cell in row], shown
