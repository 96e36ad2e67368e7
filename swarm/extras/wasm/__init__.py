"""Python as a tool: MicroPython in WebAssembly, without files, clock, network or randomness."""
