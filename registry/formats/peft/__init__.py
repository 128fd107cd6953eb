"""PEFT's adapter directories, without torch.

`lora` and `prefix` read `adapter_config.json`, `patterns` what it says module by module (rank_pattern, alpha_pattern,
target_modules), with `expressions` for regular expressions; `writing` writes it.
"""
