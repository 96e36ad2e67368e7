"""Other peers' groups between the network and the update: intake, regrading, copies, screening, pool."""
