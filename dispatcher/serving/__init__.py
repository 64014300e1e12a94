"""Interactive serving beside batch: its promises, its metrics, and the guard that makes batch step aside."""
