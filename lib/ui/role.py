"""Who looks: a teacher, or a pupil of the class."""

import os

import marimo as mo

from lib.ui.notebooks import APP, SERVED

TEACHER, PUPIL = "teacher", "pupil"


def role() -> str:
    """`TEACHER` or `PUPIL`, as the server says with the request that opened the page.

    Where it says nothing, whoever looks is a pupil under `make class`, else the teacher: in the editor, in a script.
    Under `make run`, which is for one person, everybody is.
    """
    if os.environ.get(SERVED) == APP:
        return TEACHER
    request = mo.app_meta().request
    unsaid = PUPIL if os.environ.get(SERVED) == "run" else TEACHER
    said = request.meta.get("role", unsaid) if request is not None else unsaid
    return TEACHER if said == TEACHER else PUPIL
