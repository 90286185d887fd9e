"""The figures that README quotes: `python -m benchmarks [epochs] [anatomy] [experiments] [peers] [interaction] [memory]`."""
