"""The protocol: what a mechanism is, what it is asked, what it answers; one module for each, imported by name."""
