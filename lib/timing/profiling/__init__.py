"""A training step taken apart: where its time goes, operation by operation and part by part."""
