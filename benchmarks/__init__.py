"""The figures that README quotes: `python -m benchmarks [epochs] [experiments] [peers] [interaction] [memory]`."""
