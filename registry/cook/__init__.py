"""The cook verb: a sample, or a recipe, becomes a soup that is stored with its recipe and its evidence.

`cook` is the way from request to answer; a strategy proposes candidates, `scoring` tries them on held-out passages,
`acceptance` has the one rule, `store` writes. Nothing here runs a model or computes a gradient: the functions
of `Computations` do.
"""
