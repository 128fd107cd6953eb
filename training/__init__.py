"""How adapters are made: text to blocks, an optimisation loop, an adapter trained on a frozen base model.

Called by `soup train` and the demo; knows nothing of HTTP, the database or settings.
"""
