"""HTML helpers that the views share: content and escaping."""

from lib.sweeps.experiments.published import ADDRESSES
from lib.ui.views.markup import inline, on_demand, table


def test_a_row_of_one_cell_is_a_heading():
    text = table(["what", "a", "b"], [["group"], ["row", "1", "2"]], "wide", ["", "bold"])
    assert '<table class="lab-table wide">' in text
    assert '<th scope="colgroup" colspan="3">group</th>' in text
    assert '<tr class="bold"><th scope="row">row</th><td>1</td><td>2</td></tr>' in text


def test_text_is_escaped_and_code_and_articles_are_marked_up():
    title, address = next(iter(ADDRESSES.items()))
    text = inline(f"a < b, see `make <x>` and {title}")
    assert text.startswith("a &lt; b, see <code>make &lt;x&gt;</code> and ")
    assert f'<a href="{address}" target="_blank" rel="noopener noreferrer">{title}</a>' in text


def test_details_on_demand_are_closed():
    assert on_demand("more", "<p>text</p>").startswith('<details class="lab-details"><summary>more</summary>')
