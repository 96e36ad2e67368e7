"""How much may be made of a data set: what its files state, and what is counted while they are converted."""
