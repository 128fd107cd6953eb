"""Files that clients send: inline in a request, as uploaded blobs, or in parts of an upload session.

Must not know what a file is for: adapters, samples and training data are read by the verbs above.
"""
