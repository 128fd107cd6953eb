"""Logs, traces and usage counters of a server.

Nothing here keeps what people sent: texts, names of files and messages of exceptions stay out.
"""
