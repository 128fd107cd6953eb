"""Authenticate and authorise requests before their bodies are read.

Nothing here knows routes: each route declares the scope it needs.
"""
