"""Break a training step down: where its time goes, operation by operation and part by part."""
