"""Keeps the `datasets` library off the network and out of the home directory, here and in workers."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile

_CACHE = tempfile.mkdtemp(prefix="swarm-test-datasets-")
atexit.register(shutil.rmtree, _CACHE, ignore_errors=True)
# before anything imports `datasets`, which reads them once
os.environ.update(HF_DATASETS_CACHE=_CACHE, HF_HUB_OFFLINE="1", HF_DATASETS_DISABLE_PROGRESS_BARS="1")
