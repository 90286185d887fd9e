"""Charts of the labs, too, say themselves in words."""

from tests.views.conftest import charts_in_words  # noqa: F401
