"""Generated pictures: shapes to count, digits to add, a maze to walk, and the embedded policy that sees."""
