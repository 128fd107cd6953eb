"""Methods beyond plain training: AdaMix, pruning, fusion, wider bottlenecks, the targets of a LoRA."""
