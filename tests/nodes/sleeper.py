"""A process that says so and sleeps."""

import time

print("asleep", flush=True)
time.sleep(600)
