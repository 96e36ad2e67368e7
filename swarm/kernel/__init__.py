"""What Python's library does not offer of the kernel: system calls, and seccomp filters."""
