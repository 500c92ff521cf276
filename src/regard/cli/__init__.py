"""The `regard` command: `main`, and one file for each verb."""
