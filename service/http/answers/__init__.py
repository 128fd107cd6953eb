"""Answers that take some building: of completions, chat, jobs, soups and lineage, as models of `schemas`."""
