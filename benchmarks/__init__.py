"""The figures that README quotes:

`python -m benchmarks [epochs] [anatomy] [experiments] [sweeps] [regret] [peers] [interaction] [memory]`.
"""
