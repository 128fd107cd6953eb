"""Files that clients send: inline in a request, as uploaded blobs, or in parts within an upload session.

Nothing here knows what a file is for: adapters, samples and training data are read by the verbs above.
"""
