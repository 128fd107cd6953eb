"""PEFT's directories of LoRAs and prefixes: read (`lora`, `prefix`), matched (`patterns`) and written (`writing`)."""
