"""Everything of the notebooks that is not a control, a chart cell or prose."""
