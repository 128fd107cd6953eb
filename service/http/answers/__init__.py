"""Build answers: completions and chats, whole or token by token; jobs, soups and lineage, as a key may see them.

`waiting` waits for the jobs. Nothing here knows routes, or decides who may call one.
"""
