"""Configurations of adapters, one file for each structure. No torch.

`structure` has the base class with defaults, which a structure overrides where it differs. The table
`registry.adapters.STRUCTURES`, whose entries handle tensors, describes how to add one.
"""
