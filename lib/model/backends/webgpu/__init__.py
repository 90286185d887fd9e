"""Training on any graphics card by WebGPU: kernels in WGSL, and the list of operations that launches them."""
