"""What the laboratory does with published networks: evaluate, start a training, look up, leave early."""
