"""How often answers are graded as a careful human does, by our rules and by others."""
