"""Which layout to choose, proved where it can be."""
