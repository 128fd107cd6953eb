"""Verbs that evaluate: perplexity of one model with its uncertainty, and of a pool's adapters on each other's samples.

Models are run by the caller or through `BaseModel.score`.
"""
