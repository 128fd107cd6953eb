"""The plugin for vLLM: the server's LoRAs and bottlenecks in vLLM, by name. Only vLLM imports it."""
