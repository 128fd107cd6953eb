"""PEFT's adapter directories, without torch.

`lora` and `prefix` read `adapter_config.json`, `patterns` its fields of single modules (rank_pattern, alpha_pattern,
target_modules), `expressions` their regular expressions; `writing` writes it.
"""
