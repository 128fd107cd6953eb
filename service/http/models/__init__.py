"""Resolve the model that an inference request names, and count and limit what inference uses.

Nothing here generates tokens: that is the engine, and `service.http.answers` writes the response.
"""
