"""The plugin for vLLM: the server's LoRAs and bottlenecks in vLLM, by name.

vLLM imports it; `soup export --vllm` uses only `lora_files`.
"""
