"""The structures of adapters as configurations: what one is made of, and what it answers about itself. No torch.

One structure a file. `structure` has the base class, with the answers of a structure that does nothing special;
a new structure overrides those that differ for it. It is made known in two places: the union `AdapterConfig` in
`registry.spec.config`, and `registry.adapters.STRUCTURES`, whose entry says what it does with tensors
(`tests/registry/adapters/test_toy_structure.py` has one from push to soup).
"""
