"""Small made-up domains without a letter in common: even an untrained base model tells them apart."""

from __future__ import annotations

import random

WORDS = {
    "kitchen": "heat the oil and stir onions until golden then add salt pepper garlic butter flour and bake".split(),
    "court": "THE COURT HELD THAT CONTRACT WAS VOID FOR WANT OF CONSIDERATION AND DISMISSED AN APPEAL".split(),
    "code": "0 1 2 3 10 21 32 43 == != += -> { } [ ] ( ) ; 99 77 // && || << >> 0x1f 0b10".split(),
}


def passages(domain: str, count: int, *, seed: int = 0) -> list[str]:
    """`count` different passages of a domain."""
    generator = random.Random(f"{domain}-{seed}")
    texts: dict[str, None] = {}
    while len(texts) < count:
        sentences = [" ".join(generator.choices(WORDS[domain], k=generator.randint(6, 10))) for _ in range(2)]
        texts[". ".join(sentences) + "."] = None
    return list(texts)
