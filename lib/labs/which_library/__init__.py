"""Which library is fastest here, and which machine for which work?"""
