"""Configurations of adapters, one file for each structure. No torch.

`structure` has the base class with defaults, which a structure overrides where it differs. How a new one is added is
said beside the table `registry.adapters.STRUCTURES`, whose entries handle tensors.
"""
