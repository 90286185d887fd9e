"""What a notebook asks, without a page."""
