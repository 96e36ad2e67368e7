"""One update on one batch, ours and TRL's, each in a process of its own."""
