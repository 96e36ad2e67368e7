"""Code that benchmarks share: reports, child processes, attackers."""
