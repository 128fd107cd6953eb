"""The inference engine: the one thread that runs the base models, and the queue before it.

`request` is what is asked and answered, `scheduler` decides what runs next, `bank` holds adapters ready, `runner`
runs the models, `sampler` draws tokens, `choice` and `text` make text of them, `engine` ties these together.
"""
