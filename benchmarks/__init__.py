"""The figures that README quotes:

`python -m benchmarks [epochs] [anatomy] [pipeline] [experiments] [sweeps] [regret] [peers] [interaction] [memory]`.
"""
