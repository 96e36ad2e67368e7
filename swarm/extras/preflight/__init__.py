"""The page of sizes: which models train on which GPUs, computed as a start computes what a node needs."""
