"""The structures of adapters as configurations: what one is made of, and what it answers about itself. No torch.

One structure a file. `structure` has the base class, with the answers of a structure that does nothing special;
a new structure overrides those that differ for it. `registry.spec.config` puts them together as one union by `method`.
"""
