"""`soup route`: a proxy before several servers, which sends each adapter's requests where it is loaded already.

It loads no model. What a request may do is the replicas' to say: they get it as it came, with its key, and find its
model by themselves, so that a route which is out of date is slower and never wrong.
"""
