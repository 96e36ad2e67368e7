"""Heads-up poker on PokerKit's rules: Kuhn poker and no-limit Texas hold'em against scripted opponents."""
