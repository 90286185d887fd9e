"""Who looks: by what the server says with the request, and the teacher where it says nothing."""

from types import SimpleNamespace

import pytest

from lib.ui import role as module
from lib.ui.notebooks import SERVED
from lib.ui.role import PUPIL, TEACHER, role


@pytest.mark.parametrize(
    ("meta", "wanted"),
    [({"role": "pupil"}, PUPIL), ({"role": "teacher"}, TEACHER), ({}, TEACHER), ({"role": "headmaster"}, PUPIL)],
)
def test_the_server_says_who_looks(monkeypatch, meta, wanted):
    monkeypatch.setattr(module.mo, "app_meta", lambda: SimpleNamespace(request=SimpleNamespace(meta=meta)))
    assert role() == wanted


def test_who_is_not_named_in_a_class_is_a_pupil(monkeypatch):
    monkeypatch.setattr(module.mo, "app_meta", lambda: SimpleNamespace(request=SimpleNamespace(meta={})))
    monkeypatch.setenv(SERVED, "run")
    assert role() == PUPIL


def test_without_a_request_it_is_the_teacher():
    assert role() == TEACHER
