"""Attacks on the library, by seeds: `python -m evidence.campaign` makes them, counts them, and writes
docs/reliability.md.

Every part has cases, made from a seed, and an outcome of each: it is right, or a defect whose description repeats it.
What was done is in docs/recorded/reliability.jsonl, a line for each batch of cases; a later call goes on behind it.
"""
