"""Everything the pages share on top of marimo: controls, sections, live drawing into cells."""
