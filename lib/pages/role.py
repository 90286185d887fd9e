"""Who looks: a teacher, or a pupil of the class."""

import marimo as mo

TEACHER, PUPIL = "teacher", "pupil"


def role() -> str:
    """`TEACHER` or `PUPIL`, as the server says with the request that opened the page.

    Where it says nothing, in the editor, in a script, or without a class, whoever looks is the teacher.
    """
    request = mo.app_meta().request
    said = request.meta.get("role", TEACHER) if request is not None else TEACHER
    return TEACHER if said == TEACHER else PUPIL
