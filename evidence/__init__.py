"""What is said of the library, measured: claims, the campaign that attacks it, benchmarks. Not in the wheel."""
