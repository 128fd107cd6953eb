"""Probes of models: the texts of a base model's probe, and the diagnosis of a server's answers to it."""

from __future__ import annotations
