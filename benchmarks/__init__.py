"""The figures that README quotes: `python -m benchmarks [epochs] [experiments] [interaction] [memory]`."""
