"""Perplexity with its uncertainty, for one model or for every adapter of a pool on every sample of it.

Scores arrive as values: nothing here runs a model.
"""
