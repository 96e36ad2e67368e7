"""What benchmarks share: reports, child processes, attackers."""
