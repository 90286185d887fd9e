"""Single operations and input pipelines: sections, and a checklist of the articles' advice."""
