"""The figures quoted in the README:

`python -m benchmarks [epochs] [anatomy] [pipeline] [experiments] [sweeps] [regret] [peers] [interaction] [memory]`.
"""
