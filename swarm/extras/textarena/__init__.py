"""Games of the TextArena library for one player, as environments."""
