"""Configurations of adapters, one file for each structure. No torch.

`structure` has the base class with defaults, which a structure overrides where it differs. A new structure is
registered in two places: the union `AdapterConfig` in `registry.spec.config`, and `registry.adapters.STRUCTURES`, whose
entry handles its tensors (`tests/registry/adapters/test_toy_structure.py` takes one from push to soup).
"""
