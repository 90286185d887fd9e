"""The comparison of machines as a page: what comes from others' exports is shown, and does nothing."""

import html
import re

import pytest

from lib.experiments.recorded_machines import Collection, Machine
from lib.pages import compare_machines
from lib.pages.compare_machines import Chosen, Remembered
from lib.pages.url_state import Address


@pytest.mark.parametrize("name", ['<img src="/?class=T">', "$a$ **b**", "https://evil.example/a.png"])
def test_a_machine_s_name_is_text_wherever_the_page_shows_it(name):
    machines = (Machine(f"{name} · 4 cores · {name}", f"{name}.json"), Machine("Eniac · 2 cores · no GPU", "b.json"))
    collection = Collection(machines)
    panel = compare_machines.panel(Address(), collection, Remembered())
    now = Chosen(machines, {}, 0.95)
    for shown in (compare_machines.controls(panel).text, compare_machines.machines(collection, now).text):
        # marimo's labels are HTML in an attribute: seen once more without the outer escaping.
        for layer in (shown, *map(html.unescape, re.findall(r"data-label='([^']*)'", shown))):
            assert not re.search(r"<(img|div style|a |marimo-tex|strong)", layer.replace("\\u003c", "<"))
